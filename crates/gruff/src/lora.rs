//! LoRA adapters from files: GGUF as llama.cpp's converter writes them, and folders that PEFT saved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gruff_blocks::BlockType;
use gruff_convert::Dense;
use gruff_convert::safetensors::SafetensorsFile;
use gruff_gguf::Gguf;
use gruff_models::{Lora, LoraScales, Model, ModuleKind, Weight};
use serde::Deserialize;

use crate::{AutoModelForCausalLM, Error, Result};

/// What PEFT calls its files.
const PEFT_CONFIG: &str = "adapter_config.json";
const PEFT_WEIGHTS: &str = "adapter_model.safetensors";

/// What PEFT puts before the base model's own names.
const PEFT_PREFIX: &str = "base_model.model.";

impl AutoModelForCausalLM {
    /// Loads a LoRA adapter beside the packed weights, under a name and on at scale 1: a GGUF file as
    /// convert_lora_to_gguf writes it, or a folder with PEFT's `adapter_config.json` and `adapter_model.safetensors`.
    /// Several may be loaded at once; a request may give them scales of its own.
    ///
    /// # Errors
    /// [`Error::Adapter`] names the file and what is wrong: another base model, ranks or shapes that do not fit, a kind
    /// of adapter that cannot be applied; [`Error::Model`] when the name is taken.
    pub fn load_adapter(&self, name: &str, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let lora = if path.is_dir() { self.read_peft(path)? } else { self.read_gguf(path)? };
        if lora.modules().next().is_none() {
            return Err(fault(path, "holds no matrices"));
        }
        self.model().adapters().add(name, lora, 1.0)?;
        Ok(())
    }

    /// Changes the scale of an adapter for whatever says nothing else; 0 is off.
    ///
    /// # Errors
    /// [`Error::Model`] when there is none of that name or the scale is not a number.
    pub fn set_adapter_scale(&self, name: &str, scale: f32) -> Result<()> {
        Ok(self.model().adapters().set_scale(name, scale)?)
    }

    /// Takes an adapter away.
    ///
    /// # Errors
    /// [`Error::Model`] when there is none of that name.
    pub fn unload_adapter(&self, name: &str) -> Result<()> {
        Ok(self.model().adapters().remove(name)?)
    }

    /// The adapters that are loaded, and their scales.
    pub fn adapters(&self) -> LoraScales {
        self.model().adapters().scales()
    }

    fn read_gguf(&self, path: &Path) -> Result<Lora> {
        let gguf = Gguf::open(path)?;
        let metadata = gguf.metadata();
        let text = |key: &str| -> Result<String> { Ok(metadata.str(key)?.unwrap_or_default().to_owned()) };
        if text("general.type")? != "adapter" {
            return Err(fault(path, "is not an adapter: its general.type is not \"adapter\""));
        }
        if text("adapter.type")? != "lora" {
            return Err(fault(
                path,
                format!("is an adapter of the type {:?}; only lora can be applied", text("adapter.type")?),
            ));
        }
        let (own, base) = (text("general.architecture")?, self.model().config().architecture.clone());
        if own != base {
            return Err(fault(path, format!("was made for a {own} model, not for {base}")));
        }
        if metadata.get("adapter.alora.invocation_tokens").is_some() {
            return Err(fault(
                path,
                "is an activated LoRA, which is on from certain tokens only; that cannot be applied",
            ));
        }
        let alpha = metadata.f32("adapter.lora.alpha")?.unwrap_or(0.0);
        let mut pairs = Pairs::new(path);
        for tensor in gguf.tensors() {
            let (stem, side) = split(tensor.name(), ".lora_a", ".lora_b").ok_or_else(|| {
                fault(path, format!("has a tensor {:?}, which is no part of a LoRA", tensor.name()))
            })?;
            let module = self.module_of(stem).ok_or_else(|| {
                fault(
                    path,
                    format!("adapts {stem:?}, which this model does not have; it was made for another"),
                )
            })?;
            let (matrices, rows, columns) = match *tensor.shape() {
                [columns, rows] => (None, rows, columns),
                [columns, rows, experts] => (Some(experts), rows, columns),
                _ => {
                    return Err(fault(
                        path,
                        format!("{:?} is not a matrix: {:?}", tensor.name(), tensor.shape()),
                    ));
                }
            };
            let values = tensor
                .block_type()?
                .unpack_to_vec(&gguf.data(tensor)?)
                .map_err(gruff_kernels::Error::from)?;
            let (rows, columns) = (rows as usize, columns as usize);
            let Some(experts) = matrices else {
                let mut matrix = Matrix { rows, columns, values };
                // The table's own matrix A has a row for each token.
                if side == Side::A && self.kind_of(&module) == Some(ModuleKind::Embedding) {
                    matrix = matrix.turned();
                }
                pairs.put(module, None, side, matrix);
                continue;
            };
            let each = rows * columns;
            for (expert, values) in (0..experts as usize).zip(values.chunks(each.max(1))) {
                let matrix = Matrix { rows, columns, values: values.to_vec() };
                pairs.put(module.clone(), Some(expert), side, matrix);
            }
        }
        // llama.cpp takes a missing alpha, or 0, for the rank itself.
        pairs.finish(self.model().as_ref(), |_, rank| if alpha == 0.0 { 1.0 } else { alpha / rank as f32 })
    }

    fn kind_of(&self, module: &str) -> Option<ModuleKind> {
        self.model().named_modules().iter().find(|info| info.name == module).map(|info| info.kind)
    }

    /// The matrix that holds a GGUF tensor: `blk.0.attn_q.weight` is `model.layers.0.self_attn.q_proj`.
    fn module_of(&self, tensor: &str) -> Option<String> {
        let names = self.model().names();
        let stem = tensor.strip_suffix(".weight").unwrap_or(tensor);
        let known = |name: &String| self.model().named_modules().iter().any(|info| info.name == *name);
        names.modules(stem).find(known)
    }

    fn read_peft(&self, folder: &Path) -> Result<Lora> {
        let config = PeftConfig::read(&folder.join(PEFT_CONFIG))?;
        let path = folder.join(PEFT_WEIGHTS);
        let file = SafetensorsFile::open(&path)?;
        let dense = Dense::new(self.checkpoint().gguf())?;
        let mut pairs = Pairs::new(&path);
        for (name, entry) in file.tensors() {
            let stem =
                name.strip_prefix(PEFT_PREFIX).unwrap_or(name).replace("model.language_model.", "model.");
            let stem = stem.strip_suffix(".weight").unwrap_or(&stem);
            let pair = split(stem, ".lora_A", ".lora_B")
                .or_else(|| split(stem, ".lora_embedding_A", ".lora_embedding_B"));
            let (module, side) = pair.ok_or_else(|| {
                fault(&path, format!("has a tensor {name:?}, which is no part of a LoRA that can be applied"))
            })?;
            let (module, expert) = without_expert(module);
            let [rows, columns] = *entry.shape.as_slice() else {
                return Err(fault(&path, format!("{name:?} is not a matrix: {:?}", entry.shape)));
            };
            let mut matrix =
                Matrix { rows: rows as usize, columns: columns as usize, values: file.read_f32(name)? };
            // What transformers trained is in its order; packed weights are in GGUF's.
            if let Some((rows, columns)) = dense.gguf_order(&format!("{module}.weight")) {
                match side {
                    Side::A if columns.len() == matrix.columns => matrix = matrix.columns_from(&columns),
                    Side::B if rows.len() == matrix.rows => matrix = matrix.rows_from(&rows),
                    _ => {}
                }
            }
            pairs.put(module, expert, side, matrix);
        }
        pairs.finish(self.model().as_ref(), |module, rank| config.factor(module, rank))
    }
}

fn fault(path: &Path, fault: impl Into<String>) -> Error {
    Error::Adapter { path: path.to_owned(), fault: fault.into() }
}

/// Which of the two matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    A,
    B,
}

/// A tensor's name without the ending that tells which matrix it is.
fn split<'a>(name: &'a str, a: &str, b: &str) -> Option<(&'a str, Side)> {
    let with = |ending: &str, side: Side| Some((name.strip_suffix(ending)?, side));
    with(a, Side::A).or_else(|| with(b, Side::B))
}

/// `model.layers.3.mlp.experts.up_proj` and 5 of `model.layers.3.mlp.experts.5.up_proj`: transformers had a module for
/// every expert, files have stacks.
fn without_expert(module: &str) -> (String, Option<usize>) {
    let numbered = module.split_once(".experts.").and_then(|(before, behind)| {
        let (number, matrix) = behind.split_once('.')?;
        Some((format!("{before}.experts.{matrix}"), number.parse().ok()?))
    });
    match numbered {
        Some((module, expert)) => (module, Some(expert)),
        None => (module.to_owned(), None),
    }
}

#[derive(Clone)]
struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn rows_from(&self, order: &[usize]) -> Self {
        let row = |row: &usize| self.values[row * self.columns..(row + 1) * self.columns].iter().copied();
        Self { values: order.iter().flat_map(row).collect(), ..*self }
    }

    fn columns_from(&self, order: &[usize]) -> Self {
        let rows = self.values.chunks_exact(self.columns);
        Self { values: rows.flat_map(|row| order.iter().map(|column| row[*column])).collect(), ..*self }
    }

    fn turned(&self) -> Self {
        let column = |column: usize| self.values.iter().skip(column).step_by(self.columns).copied();
        Self { rows: self.columns, columns: self.rows, values: (0..self.columns).flat_map(column).collect() }
    }

    fn weight(&self, model: &dyn Model) -> Result<Weight> {
        Ok(Weight::pack(model.device(), &self.values, BlockType::F32, &[self.rows, self.columns])?)
    }
}

/// One of the two matrices of a module: as it is, or those of each expert.
#[derive(Default)]
struct Half {
    whole: Option<Matrix>,
    experts: BTreeMap<usize, Matrix>,
}

impl Half {
    /// The weight of a module, a stack of `experts` where it is one; experts that the adapter leaves alone get zeros.
    fn weight(&self, model: &dyn Model, experts: Option<usize>) -> Result<Weight, String> {
        let fail = |error: Error| error.to_string();
        let Some(count) = experts else {
            let whole = self.whole.as_ref().ok_or("has matrices for experts, which it is none of")?;
            return whole.weight(model).map_err(fail);
        };
        let Some(first) = self.experts.values().next() else {
            return Err("is a stack of experts, but the matrices are not".to_owned());
        };
        let (rows, columns) = (first.rows, first.columns);
        if self.experts.values().any(|matrix| (matrix.rows, matrix.columns) != (rows, columns)) {
            return Err("has experts of different ranks".to_owned());
        }
        if let Some(wild) = self.experts.keys().find(|expert| **expert >= count) {
            return Err(format!(
                "has {count} experts and no number {wild}; the adapter was made for another model"
            ));
        }
        let none = vec![0.0; rows * columns];
        let each = |expert: usize| self.experts.get(&expert).map_or(&none, |matrix| &matrix.values);
        let values: Vec<f32> = (0..count).flat_map(|expert| each(expert).iter().copied()).collect();
        Weight::pack(model.device(), &values, BlockType::F32, &[count, rows, columns])
            .map_err(|error| error.to_string())
    }

    fn is_empty(&self) -> bool {
        self.whole.is_none() && self.experts.is_empty()
    }
}

/// Matrices by module, until both of each are there.
struct Pairs {
    path: PathBuf,
    found: BTreeMap<String, [Half; 2]>,
}

impl Pairs {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), found: BTreeMap::new() }
    }

    fn put(&mut self, module: String, expert: Option<usize>, side: Side, matrix: Matrix) {
        let half = &mut self.found.entry(module).or_default()[side as usize];
        match expert {
            Some(expert) => drop(half.experts.insert(expert, matrix)),
            None => half.whole = Some(matrix),
        }
    }

    fn finish(self, model: &dyn Model, factor: impl Fn(&str, usize) -> f32) -> Result<Lora> {
        let mut lora = Lora::new();
        for (module, [a, b]) in &self.found {
            let refuse = |what: String| fault(&self.path, what);
            if a.is_empty() || b.is_empty() || !a.experts.keys().eq(b.experts.keys()) {
                return Err(refuse(format!("has only one of the two matrices for {module}")));
            }
            let own = model.named_modules().iter().find(|info| info.name == *module);
            let experts = match own.map(|info| info.kind) {
                Some(ModuleKind::Linear | ModuleKind::Embedding) => None,
                // All experts together have no weight of their own.
                Some(ModuleKind::Experts) => match model.weight(&format!("{module}.weight")) {
                    Ok(weight) => Some(if let [count, _, _] = weight.shape()[..] { count } else { 1 }),
                    Err(_) => {
                        return Err(refuse(format!(
                            "adapts {module} as a whole, not its matrices; merge it in Python"
                        )));
                    }
                },
                _ => {
                    return Err(refuse(format!(
                        "adapts {module}, which is no matrix of this model; it was made for another"
                    )));
                }
            };
            let [a, b] = [a, b].map(|half| half.weight(model, experts));
            let told = |what: String| refuse(format!("adapts {module}, which {what}"));
            let (a, b) = (a.map_err(told)?, b.map_err(told)?);
            let rank = if let [.., rank, _] = a.shape()[..] { rank } else { 0 };
            lora.add(model, module, &a, &b, factor(module, rank))
                .map_err(|error| refuse(error.to_string()))?;
        }
        Ok(lora)
    }
}

/// What of PEFT's `adapter_config.json` says how the matrices are to be applied.
#[derive(Deserialize)]
struct PeftConfig {
    peft_type: String,
    r: usize,
    lora_alpha: f32,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    bias: Option<String>,
    #[serde(default)]
    modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    target_parameters: Option<Vec<String>>,
    #[serde(default)]
    rank_pattern: Option<BTreeMap<String, usize>>,
    #[serde(default)]
    alpha_pattern: Option<BTreeMap<String, f32>>,
}

impl PeftConfig {
    fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).map_err(|error| fault(path, format!("cannot be read: {error}")))?;
        let config: Self = serde_json::from_str(&text).map_err(|error| fault(path, error.to_string()))?;
        let refuse = |what: String| Err(fault(path, what));
        if config.peft_type != "LORA" {
            return refuse(format!("is of the type {}; only LORA can be applied", config.peft_type));
        }
        for (set, field) in [(config.use_dora, "use_dora"), (config.fan_in_fan_out, "fan_in_fan_out")] {
            if set {
                return refuse(format!(
                    "has {field}, which cannot be applied beside packed weights; merge it in Python"
                ));
            }
        }
        if let Some(bias) = config.bias.as_deref().filter(|bias| *bias != "none") {
            return refuse(format!(
                "has trained biases (bias = {bias:?}), which cannot be applied; merge it in Python"
            ));
        }
        if config.modules_to_save.as_ref().is_some_and(|modules| !modules.is_empty()) {
            return refuse(
                "has modules_to_save: whole modules, which are no LoRA; merge it in Python".to_owned(),
            );
        }
        if config.target_parameters.as_ref().is_some_and(|parameters| !parameters.is_empty()) {
            return refuse(
                "has target_parameters: parameters without a module of their own, which cannot be adapted; merge it in \
                 Python"
                    .to_owned(),
            );
        }
        if config.r == 0 {
            return refuse("has rank 0".to_owned());
        }
        Ok(config)
    }

    /// `alpha / r`, or `alpha / sqrt(r)` for rsLoRA; patterns are endings of module names.
    fn factor(&self, module: &str, rank: usize) -> f32 {
        let ending = |key: &str| module == key || module.ends_with(&format!(".{key}"));
        let alphas = self.alpha_pattern.iter().flatten();
        let alpha =
            alphas.into_iter().find(|(key, _)| ending(key)).map_or(self.lora_alpha, |(_, alpha)| *alpha);
        let ranks = self.rank_pattern.iter().flatten();
        let r = ranks.into_iter().find(|(key, _)| ending(key)).map_or(self.r, |(_, rank)| *rank);
        // The file's own rank is what was trained; a pattern may be written as an expression.
        let r = if r == rank { r } else { rank } as f32;
        if self.use_rslora { alpha / r.sqrt() } else { alpha / r }
    }
}
