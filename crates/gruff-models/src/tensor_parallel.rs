//! A model on several devices, each of which has a part of every matrix and computes it in every step.

use gruff_gguf::Gguf;
use gruff_kernels::{Collective, CpuOptions, Device, Step, Tensor};

use crate::prepare::rehearsed;
use crate::{
    Adapters, Caches, Error, Hooks, Model, ModelBase, ModelConfig, Modules, Placement, Result, load_placed,
};

/// One model a device, with that device's part of the matrices, which are run together.
struct TensorParallel {
    base: ModelBase,
    ranks: Vec<Box<dyn Model>>,
    collective: Collective,
}

/// Puts the model of a file together on the devices that `placement` shares its matrices out to.
pub(crate) fn load(gguf: &Gguf, placement: &Placement) -> Result<Box<dyn Model>> {
    let devices = placement.ranks();
    // What is known of the whole, and its weights to be read: borrowed from the file's map.
    let host = Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
    let whole = load_placed(gguf, &Placement::on(&host))?;
    let collective = Collective::new(devices)?;
    let rank = |rank| load_placed(gguf, &Placement::of_rank(collective.rank(rank)));
    let ranks = (0..devices.len()).map(rank).collect::<Result<Vec<_>>>()?;
    let own = whole.base();
    let caches = own.config.caches.shared_out(devices.len());
    let config = ModelConfig { caches, ..own.config.clone() };
    let modules = own.modules.all().to_vec();
    let mut base = ModelBase::placed(config, placement.clone(), own.names);
    base.hooks = Hooks::closed(&modules);
    base.modules = Modules::closed(modules);
    base.parameters = own.parameters.closed();
    base.adapters = Adapters::closed();
    base.origin = own.origin.clone();
    Ok(Box::new(TensorParallel { base, ranks, collective }))
}

impl Model for TensorParallel {
    fn base(&self) -> &ModelBase {
        &self.base
    }

    fn forward(&self, step: &Step, caches: &mut Caches) -> Result<Tensor> {
        let of = self.ranks.len();
        let (layers, found) = (self.base.config.num_hidden_layers, caches.layers().len());
        if found != layers * of {
            let found = "those of a model in one piece";
            return Err(Error::Caches { layer: 0, needed: "a part for each device", found });
        }
        let own = |rank| caches.of_rank(rank, of);
        if let Some(device) = rehearsed() {
            let rank = self.collective.devices().iter().position(|own| own.same(&device)).unwrap_or(0);
            return self.ranks[rank].forward(step, &mut own(rank));
        }
        let parts = self.ranks.iter().enumerate().map(|(rank, model)| (model, own(rank))).collect();
        let logits = self.collective.run(parts, |(model, mut caches)| model.forward(step, &mut caches))?;
        match logits.into_iter().next() {
            Some(logits) => Ok(logits),
            None => unreachable!("there are ranks"),
        }
    }
}
