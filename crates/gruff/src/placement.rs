//! From a device's name, as people write it, to where each part of a model goes.

use std::collections::BTreeMap;

use gruff_engine::{Division, EngineOptions, MemoryPlan, SplitMode, fits_on, place};
use gruff_gguf::Gguf;
use gruff_kernels::{Activations, CpuOptions, CudaOptions, Device, Without, cuda};
use gruff_models::{Model, Placement};

use crate::pretrained::{Dtype, LoadOptions, cuda_ordinal};
use crate::{Error, Result};

/// Where the parts of a model go, and why.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Where they go.
    pub placement: Placement,
    /// Why, for people.
    pub reason: String,
}

/// A model whose weights are where they are to be.
pub(crate) struct Loaded {
    pub(crate) model: Box<dyn Model>,
    /// Why they are there, for people.
    pub(crate) reason: String,
    /// What an engine for it is made with.
    pub(crate) engine: EngineOptions,
}

/// Cards to choose from, or why there is none.
struct Cards {
    devices: Vec<Device>,
    fault: String,
    /// Whether there is something that might be a card, were it not for the fault.
    faulty: bool,
}

impl LoadOptions {
    /// Where the parts of a model go by these options. Of the file only the header is read.
    ///
    /// # Errors
    /// [`Error::Option`] for devices that there are not or that do not go together, [`Error::Kernel`] for a card that
    /// cannot be used, [`Error::Engine`] with the sum spelled out when the model does not fit.
    pub fn place(&self, gguf: &Gguf) -> Result<Placed> {
        self.place_for(gguf, &self.engine())
    }

    /// The model, with its weights where these options put them. A card that has no room for weights that it seemed to have room
    /// for is believed no more: once, they are placed anew, with what it did give.
    ///
    /// # Errors
    /// As [`place`](Self::place), and what loading says.
    pub(crate) fn load(&self, gguf: &Gguf) -> Result<Loaded> {
        let mut engine = self.engine();
        let placed = self.place_for(gguf, &engine)?;
        let fault = match gruff_models::load_placed(gguf, &placed.placement) {
            Ok(model) => return Ok(Loaded { model, reason: placed.reason, engine }),
            Err(fault) => fault,
        };
        let Some((device, bytes)) = self.gave(gguf, &placed, &fault)? else { return Err(fault.into()) };
        // Its memory is given back before any is asked for again.
        drop(placed);
        let gave = format!("{device} gave no more than {:.1} MiB", bytes as f64 / f64::from(1 << 20));
        engine.device_memory.push((device, bytes));
        let Placed { placement, reason } = self
            .place_for(gguf, &engine)
            .map_err(|error| Error::Option(format!("{fault}; since {gave}: {error}")))?;
        tracing::warn!("{gave} for weights, which is less than it said; parts of the model are elsewhere");
        let model = gruff_models::load_placed(gguf, &placement)?;
        Ok(Loaded { model, reason: format!("{reason}; {gave}"), engine })
    }

    /// The name of the card that a fault says has no memory left, and the bytes of weights that it had taken.
    fn gave(
        &self,
        gguf: &Gguf,
        placed: &Placed,
        fault: &gruff_models::Error,
    ) -> Result<Option<(String, u64)>> {
        let gruff_models::Error::Kernel(gruff_kernels::Error::OutOfMemory { device: name, .. }) = fault
        else {
            return Ok(None);
        };
        let layers = self.paper(gguf, &mut None)?.config().num_hidden_layers;
        let devices = placed.placement.devices(layers);
        let short = devices.iter().find(|device| device.name() == name && device.free_bytes().is_some());
        Ok(short.map(|device| (name.clone(), device.peak_bytes() as u64)))
    }

    /// See [`place`](Self::place), for such an engine.
    fn place_for(&self, gguf: &Gguf, engine: &EngineOptions) -> Result<Placed> {
        if !self.device_map.is_empty() && self.split_mode == SplitMode::Tensor {
            return Err(Error::Option(
                "device_map places each part on one device, and tensor splits every part; leave one of them out".to_owned(),
            ));
        }
        if !self.device_map.is_empty() {
            return self.place_by_map(gguf, engine);
        }
        let division = Division {
            split_mode: self.split_mode,
            gpu_layers: self.gpu_layers,
            cpu_moe: self.cpu_moe,
            shares: self.tensor_split.clone(),
        };
        let asked = self.device.as_deref().unwrap_or("auto");
        if self.deterministic {
            self.check_deterministic(asked)?;
        }
        let on_cpu = |reason: String| Ok(Placed { placement: Placement::on(&self.whole_cpu()?), reason });
        let mut paper = None;
        let (cards, cpu) = match asked {
            "auto" => {
                // Opening a card takes a while: the others are left alone where the first has room.
                let host = self.cpu()?;
                let alone = |card: &Device| {
                    self.paper(gguf, &mut paper)
                        .is_ok_and(|paper| fits_on(paper, card, &host, &division, engine))
                };
                let Cards { devices, fault, faulty } = self.usable_cards(alone);
                if devices.is_empty() {
                    let Division { split_mode, gpu_layers, cpu_moe, shares } = &division;
                    let tensor = *split_mode == SplitMode::Tensor;
                    if tensor || gpu_layers.unwrap_or(0) > 0 || cpu_moe.is_some() || !shares.is_empty() {
                        return Err(Error::Option(format!(
                            "there is no card to place a part of the model on: {fault}; leave --gpu-layers, --n-cpu-moe, \
                             --cpu-moe, --tensor-split and --split-mode out"
                        )));
                    }
                    if faulty {
                        tracing::warn!(
                            "the model runs on the CPU, for no card can be used ({fault}); --device cpu says no more of this"
                        );
                    }
                    return on_cpu(fault);
                }
                (devices, true)
            }
            "cpu" | "reference" => {
                if division != Division::default() {
                    return Err(Error::Option(format!(
                        "--gpu-layers, --n-cpu-moe, --tensor-split and --split-mode divide a model between cards and the CPU; \
                         choose --device auto or cuda,cpu instead of {asked}"
                    )));
                }
                let placement = Placement::on(&self.open_device()?);
                return Ok(Placed { placement, reason: "as it was asked for".to_owned() });
            }
            list => {
                let names: Vec<&str> = list.split(',').map(str::trim).collect();
                let cpu = names.contains(&"cpu");
                if cpu && self.split_mode == SplitMode::Tensor {
                    return Err(Error::Option(format!(
                        "--split-mode tensor is for cards alone; leave the CPU out of --device {asked}"
                    )));
                }
                let cards = names.iter().filter(|name| **name != "cpu");
                (cards.map(|name| self.card(name)).collect::<Result<Vec<_>>>()?, cpu)
            }
        };
        let host = cpu.then(|| self.cpu()).transpose()?;
        let chosen = place(self.paper(gguf, &mut paper)?, &cards, host.as_ref(), &division, engine)?;
        let told = if asked == "auto" { chosen.reason } else { format!("{asked}: {}", chosen.reason) };
        Ok(Placed { placement: chosen.placement, reason: told })
    }

    /// Refuses a choice of devices that round differently by what memory is free when the model is loaded. Cards among themselves
    /// share layers out as they like: each computes what one alone would.
    fn check_deterministic(&self, asked: &str) -> Result<()> {
        if self.split_mode == SplitMode::Tensor && asked == "auto" {
            return Err(Error::Option(
                "deterministic: with --split-mode tensor the number of cards says in which order sums are made, and with --device \
                 auto that is what is found; name the cards (--device cuda:0,cuda:1)"
                    .to_owned(),
            ));
        }
        let beside_cpu =
            asked == "auto" || (asked != "cpu" && asked.split(',').any(|name| name.trim() == "cpu"));
        if !beside_cpu || self.gpu_layers.is_some() || self.cpu_moe.is_some() {
            return Ok(());
        }
        Err(Error::Option(format!(
            "deterministic: with --device {asked} free memory decides what the CPU computes, which rounds otherwise than cards; \
             choose --device cpu or cuda, or say what goes to the CPU (--gpu-layers, --n-cpu-moe, --cpu-moe)"
        )))
    }

    /// The model put together on the CPU, which borrows the weights, to see how large its parts are.
    fn paper<'a>(&self, gguf: &Gguf, made: &'a mut Option<Box<dyn Model>>) -> Result<&'a dyn Model> {
        let model = match made.take() {
            Some(model) => model,
            None => gruff_models::load(gguf, &self.cpu()?)?,
        };
        Ok(&**made.insert(model))
    }

    /// The CPU, for a whole model.
    pub(crate) fn whole_cpu(&self) -> Result<Device> {
        match self.without.iter().find(|part| part.is_of_loop()) {
            Some(part) => Err(Error::Option(format!(
                "{part} is what NVIDIA cards have and the CPU has not; choose --device cuda"
            ))),
            None => self.cpu(),
        }
    }

    /// The CPU, for a model or a part of it.
    fn cpu(&self) -> Result<Device> {
        let options = CpuOptions { threads: self.threads, activations: self.activations(), isa: None };
        Ok(Device::cpu_without(options, &self.families())?)
    }

    /// The families of kernels to leave out, on whatever device.
    fn families(&self) -> Vec<Without> {
        self.without.iter().copied().filter(|part| !part.is_of_loop()).collect()
    }

    /// How activations enter products on the CPU.
    pub(crate) fn activations(&self) -> Activations {
        self.or_exact(Activations::Int8)
    }

    fn or_exact(&self, rounded: Activations) -> Activations {
        match self.dtype {
            Dtype::Auto => rounded,
            Dtype::F32 => Activations::F32,
        }
    }

    /// The card that a name means.
    pub(crate) fn card(&self, name: &str) -> Result<Device> {
        let Some(ordinal) = cuda_ordinal(name) else { return Err(unknown(name)) };
        let graphs = !self.without.contains(&Without::Graphs);
        let early_launch = !self.without.contains(&Without::EarlyLaunch);
        let activations = self.or_exact(Activations::Bf16);
        let without = self.families();
        let options = CudaOptions { activations, graphs, early_launch, without, ..CudaOptions::default() };
        Ok(Device::cuda(ordinal, options)?)
    }

    /// The cards that can be used here, up to the first that will do.
    fn usable_cards(&self, mut will_do: impl FnMut(&Device) -> bool) -> Cards {
        let cards = match cuda::cards() {
            Ok(cards) => cards,
            Err(error) => {
                return Cards { devices: Vec::new(), fault: error.to_string(), faulty: !error.is_absence() };
            }
        };
        let fault = "the driver shows no card".to_owned();
        let mut found = Cards { devices: Vec::new(), fault, faulty: false };
        for card in cards {
            match self.card(&format!("cuda:{}", card.ordinal)) {
                Ok(device) if will_do(&device) => {
                    found.devices = vec![device];
                    break;
                }
                Ok(device) => found.devices.push(device),
                Err(error) => (found.fault, found.faulty) = (error.to_string(), true),
            }
        }
        found
    }

    /// The device that `auto` means where no model is in sight: the first card that can be used, else the CPU.
    pub(crate) fn auto_device(&self) -> Result<Device> {
        match self.usable_cards(|_| true).devices.into_iter().next() {
            Some(card) => Ok(card),
            None => self.whole_cpu(),
        }
    }

    /// Each part where the map says: the entry that names it, or the longest that it begins with.
    fn place_by_map(&self, gguf: &Gguf, engine: &EngineOptions) -> Result<Placed> {
        let paper = gruff_models::load(gguf, &self.cpu()?)?;
        let layers = paper.config().num_hidden_layers;
        let mut opened: BTreeMap<&str, Device> = BTreeMap::new();
        for (module, name) in &self.device_map {
            check_part(module, layers)?;
            if !opened.contains_key(name.as_str()) {
                let device = match name.as_str() {
                    "cpu" => self.cpu()?,
                    "reference" => Device::reference(self.activations()),
                    card => self.card(card)?,
                };
                opened.insert(name, device);
            }
        }
        let find = |module: &str| -> Result<&Device> {
            let meant = |key: &&String| {
                key.is_empty()
                    || module == *key
                    || module.strip_prefix(*key).is_some_and(|rest| rest.starts_with('.'))
            };
            let longest = self.device_map.keys().filter(meant).max_by_key(|key| key.len());
            let device = longest.and_then(|key| opened.get(self.device_map.get(key)?.as_str()));
            device.ok_or_else(|| {
                Error::Option(format!(
                    "device_map: nothing is said of {module}; add it, or \"\" for all that is not named"
                ))
            })
        };
        let mut placement = Placement::on(find("lm_head")?)
            .with_embedding(find("model.embed_tokens")?)
            .with_head(find("lm_head")?);
        for layer in 0..layers {
            let module = format!("model.layers.{layer}");
            let experts = find(&format!("{module}.mlp.experts"))?;
            placement = placement
                .with_layers(layer..layer + 1, find(&module)?)
                .with_experts(layer..layer + 1, experts);
        }
        MemoryPlan::placed(&*paper, &placement, engine)?;
        Ok(Placed { placement, reason: "as device_map says".to_owned() })
    }
}

/// The parts that can be placed, and what of them stands together.
fn check_part(module: &str, layers: usize) -> Result<()> {
    let ends = ["", "model", "model.embed_tokens", "model.layers", "model.norm", "lm_head"];
    if ends.contains(&module) {
        return Ok(());
    }
    let inner =
        module.strip_prefix("model.layers.").map(|inner| inner.split_once('.').unwrap_or((inner, "")));
    match inner {
        Some((layer, "" | "mlp.experts")) if layer.parse::<usize>().is_ok_and(|layer| layer < layers) => {
            Ok(())
        }
        _ => Err(Error::Option(format!(
            "device_map: {module:?} cannot be placed; what can are \"\" (all), model.embed_tokens, model.layers, \
             model.layers.N (N below {layers}), model.layers.N.mlp.experts, model.norm and lm_head"
        ))),
    }
}

pub(crate) fn unknown(name: &str) -> Error {
    Error::Option(format!(
        "there is no device {name:?}; choose one of {}, or several cards and the CPU: cuda:0,cuda:1,cpu (`gruff doctor` \
         lists what this machine has)",
        crate::DEVICES.join(", ")
    ))
}
