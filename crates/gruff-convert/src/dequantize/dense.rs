use std::collections::BTreeMap;

use gruff_gguf::{Gguf, TensorInfo};
use serde_json::Value;

use super::config;
use super::values::{Values, path_of};
use crate::architecture::{Config, Parameter, Sizes, parameters};
use crate::convert::names::MIXTRAL;
use crate::json::Document;
use crate::layout::Transpose;
use crate::stream::{Job, Origin};
use crate::{Error, Result};

/// The weights of a GGUF file as dense tensors by transformers' names, in transformers' order and shape. Nothing
/// is unpacked before it is asked for.
#[derive(Debug)]
pub struct Dense<'a> {
    gguf: &'a Gguf,
    config: Document,
    /// In the order of the model.
    names: Vec<String>,
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Debug)]
struct Tensor {
    shape: Vec<u64>,
    job: Job,
}

impl<'a> Dense<'a> {
    /// Finds every weight of the model in `gguf`.
    ///
    /// # Errors
    /// [`Error::Architecture`] for one that cannot be turned back, [`Error::Gguf`] and [`Error::Tensor`] when the
    /// file lacks a key or tensor or has one of another shape.
    pub fn new(gguf: &'a Gguf) -> Result<Self> {
        let document = config::from_metadata(gguf)?;
        let config = Config::new(document.clone())?;
        let sizes = Sizes::new(&config)?;
        let architecture = config.architecture();
        let table = gruff_models::names(architecture)
            .ok_or_else(|| Error::Argument(format!("no table of names for {architecture}")))?;
        let mut dense = Dense { gguf, config: document, names: Vec::new(), tensors: BTreeMap::new() };
        for parameter in parameters(architecture, table, &sizes) {
            if parameter.optional && gguf.tensor(&parameter.tensor).is_none() {
                continue;
            }
            let tensor = gguf.require(&parameter.tensor)?;
            check_shape(gguf, tensor, &parameter)?;
            dense.add(&parameter, config.class.model_type);
        }
        Ok(dense)
    }

    fn add(&mut self, parameter: &Parameter, model_type: &str) {
        let Parameter { name, tensor, shape, layout, stacked, .. } = parameter;
        let mut add = |name: String, shape: Vec<u64>, origin: Origin| {
            let name = if model_type == "mixtral" { mixtral(&name) } else { name };
            let columns = if shape.len() < 2 { 1 } else { shape.last().copied().unwrap_or(1) };
            let rows = shape.iter().product::<u64>() / columns.max(1);
            let job = Job { origin, rows, columns, layout: *layout, to_gguf: false };
            self.names.push(name.clone());
            self.tensors.insert(name, Tensor { shape, job });
        };
        match (shape.as_slice(), stacked) {
            ([experts, rows, columns], true) => {
                let stem = name.trim_end_matches(".weight");
                let Some((module, own)) = stem.rsplit_once('.') else { return };
                for expert in 0..*experts {
                    let origin = Origin::From { name: tensor.clone(), first: expert * rows };
                    add(format!("{module}.{expert}.{own}.weight"), vec![*rows, *columns], origin);
                }
            }
            _ => add(name.clone(), shape.clone(), Origin::Whole(tensor.clone())),
        }
    }

    /// The configuration of the model, as `config.json` of transformers states it.
    pub fn config(&self) -> Value {
        Value::Object(self.config.object().clone())
    }

    /// The tensors' names, in the order of the model.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// A tensor's shape, outermost dimension first.
    pub fn shape(&self, name: &str) -> Option<&[u64]> {
        self.tensors.get(name).map(|tensor| tensor.shape.as_slice())
    }

    /// Where GGUF's rows and columns of a matrix come from: row r of the file is row `rows[r]` of the tensor, and
    /// likewise its columns. For what stands beside packed matrices, such as adapters that transformers trained.
    pub fn gguf_order(&self, name: &str) -> Option<(Vec<usize>, Vec<usize>)> {
        let job = &self.tensors.get(name)?.job;
        let (rows, columns) = job.layout.order(true);
        let order = |order: Option<Transpose>, count: u64| {
            (0..count).map(|at| order.map_or(at, |order| order.source(at)) as usize).collect()
        };
        Some((order(rows, job.rows), order(columns, job.columns)))
    }

    /// A tensor's values, in row-major order.
    ///
    /// # Errors
    /// [`Error::Tensor`] when there is none of this name, [`Error::Gguf`] when its data cannot be read.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        self.read(name, |values| {
            all.extend_from_slice(values);
            Ok(())
        })?;
        Ok(all)
    }

    /// Hands a tensor's values on, some rows at a time.
    ///
    /// # Errors
    /// As [`values`](Self::values), and what `sink` returns.
    pub fn read(&self, name: &str, sink: impl FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let Some(tensor) = self.tensors.get(name) else {
            return Err(Error::tensor(&path_of(self.gguf), name, "is no parameter of this model"));
        };
        tensor.job.run(&Values(self.gguf), sink)
    }
}

/// Mixtral's own names.
fn mixtral(name: &str) -> String {
    let Some((layer, rest)) = name.split_once(".mlp.") else { return name.to_owned() };
    let mut rest = format!(".{rest}");
    for (own, usual) in MIXTRAL.iter().filter(|(own, _)| own.starts_with('.')) {
        rest = rest.replace(usual, own);
    }
    format!("{layer}.block_sparse_moe{rest}")
}

/// Dimensions of 1 do not matter.
fn check_shape(gguf: &Gguf, tensor: &TensorInfo, parameter: &Parameter) -> Result<()> {
    let plain = |shape: &mut dyn Iterator<Item = u64>| shape.filter(|size| *size != 1).collect::<Vec<_>>();
    let expected = plain(&mut parameter.shape.iter().rev().copied());
    if plain(&mut tensor.shape().iter().copied()) == expected {
        return Ok(());
    }
    let fault = format!("has the shape {:?}, where the metadata make it {expected:?}", tensor.shape());
    Err(Error::tensor(&path_of(gguf), tensor.name(), fault))
}
