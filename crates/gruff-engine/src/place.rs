//! Which part of a model goes to which device: all to a card where it fits, else split between cards, experts on the CPU,
//! layers on the CPU, in this order.

use gruff_kernels::Device;
use gruff_models::{Model, ModelConfig, PartBytes, Placement};

use crate::device_plan::{Planned, usable_on};
use crate::error::refuse;
use crate::plan::Bytes;
use crate::{Context, EngineOptions, MemoryPlan, Result};

/// The context that a placement should have room for where none was asked for, before parts go to the CPU.
const WANTED_CONTEXT: usize = 4096;

/// What of a model goes to which of several cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitMode {
    /// Each layer to one of them, which compute one after the other.
    #[default]
    Layer,
    /// A part of every matrix to each, which compute together (tensor parallelism).
    Tensor,
}

/// How a model is to be divided; what is not said is chosen so that it fits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Division {
    /// What goes to which of several cards.
    pub split_mode: SplitMode,
    /// Layers on cards, the last ones, the head counting as one behind them: 0 for none, one more than the model has for
    /// all, and the embedding table with them.
    pub gpu_layers: Option<usize>,
    /// Layers whose routed experts are on the CPU, the first ones.
    pub cpu_moe: Option<usize>,
    /// The cards' shares of the layers; empty for shares like their free memory.
    pub shares: Vec<f64>,
}

/// A placement and how it came about.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Where parts go.
    pub placement: Placement,
    /// Why, for people.
    pub reason: String,
}

/// What is divided, and among whom.
struct Divided<'a> {
    config: &'a ModelConfig,
    parts: &'a PartBytes,
    cards: Vec<Device>,
    cpu: Option<&'a Device>,
    shares: Vec<f64>,
    options: &'a EngineOptions,
}

/// Whether a model, divided as asked for between one card and the CPU, fits with a context that is worth having: it may then be
/// placed so without a look at other cards.
pub fn fits_on(
    model: &dyn Model,
    card: &Device,
    cpu: &Device,
    division: &Division,
    options: &EngineOptions,
) -> bool {
    let Division { split_mode, gpu_layers, cpu_moe, shares } = division;
    let (config, parts) = (model.config(), &PartBytes::of(model));
    let cards = vec![card.clone()];
    let divided = Divided { config, parts, cards, cpu: Some(cpu), shares: vec![1.0], options };
    let placement = divided.split(gpu_layers.unwrap_or(config.num_hidden_layers + 1), cpu_moe.unwrap_or(0));
    // Who says what each card gets, or has all of them compute together, wants all of them.
    shares.is_empty() && *split_mode == SplitMode::Layer && divided.fits(&placement)
}

/// Divides a model, which may have been loaded anywhere, between cards and, where there is one to go to, the CPU. Beside the CPU as
/// few cards are used as have room, unless `division` gives shares; without it, all of them.
///
/// # Errors
/// [`Error::Request`](crate::Error::Request) for a division that the model or the devices do not have, [`Error::Memory`](crate::Error::Memory) when nothing fits.
pub fn place(
    model: &dyn Model,
    cards: &[Device],
    cpu: Option<&Device>,
    division: &Division,
    options: &EngineOptions,
) -> Result<Chosen> {
    let config = model.config();
    let layers = config.num_hidden_layers;
    if division.split_mode == SplitMode::Tensor {
        return share_out(model, cards, division, options);
    }
    if cards.is_empty() {
        return match cpu {
            Some(cpu) => Ok(Chosen { placement: Placement::on(cpu), reason: "there is no card".to_owned() }),
            None => refuse("device", "there is no device to place a model on"),
        };
    }
    let parts = &PartBytes::of(model);
    division.check(parts, layers, cards.len(), cpu.is_some())?;
    let shares = match division.shares.as_slice() {
        [] => cards.iter().map(|card| usable_on(card, options).map_or(1.0, |bytes| bytes as f64)).collect(),
        given => given.to_vec(),
    };
    let divided = Divided { config, parts, cards: cards.to_vec(), cpu, shares, options };
    let asked = division.gpu_layers.is_some() || division.cpu_moe.is_some();
    let (on_cards, experts) = (division.gpu_layers.unwrap_or(layers + 1), division.cpu_moe.unwrap_or(0));
    // Whoever names several cards and nothing else, or says what each of them gets, wants all of them used.
    let least = if cpu.is_none() || !division.shares.is_empty() { cards.len() } else { 1 };
    for some in (least..=cards.len()).flat_map(|count| divided.on_some(count)) {
        let placement = some.split(on_cards, experts);
        if some.fits(&placement) {
            let reason = match some.cards.len() {
                _ if asked => "as it was asked for".to_owned(),
                1 => "the whole model fits".to_owned(),
                count if count < cards.len() => {
                    format!("it is split between {count} of {} cards", cards.len())
                }
                count => format!("it is split between {count} cards"),
            };
            return Ok(Chosen { placement, reason });
        }
    }
    if asked || cpu.is_none() {
        // The plan's own words, or a shorter context than one would like.
        let placement = divided.split(on_cards, experts);
        divided.plan(&placement)?;
        let reason = if asked { "as it was asked for" } else { "it fits with a short context" };
        return Ok(Chosen { placement, reason: reason.to_owned() });
    }
    divided.beside_cpu()
}

/// A part of every matrix to each card. The CPU takes no part.
fn share_out(
    model: &dyn Model,
    cards: &[Device],
    division: &Division,
    options: &EngineOptions,
) -> Result<Chosen> {
    let Division { gpu_layers, cpu_moe, shares, .. } = division;
    if gpu_layers.is_some() || cpu_moe.is_some() || !shares.is_empty() {
        return refuse(
            "split_mode",
            "tensor gives every card an equal part of every layer; leave --gpu-layers, --n-cpu-moe, --cpu-moe and \
             --tensor-split out, or choose layer",
        );
    }
    if cards.len() < 2 {
        let found = if cards.is_empty() { "no card" } else { "one card" };
        return refuse(
            "split_mode",
            format!(
                "tensor takes several cards, but there is {found}; name more (--device cuda:0,cuda:1), or leave it out"
            ),
        );
    }
    let placement = Placement::tensor_parallel(cards);
    let parts = PartBytes::of(model);
    let config = model.config();
    MemoryPlan::of(Planned::new(config, &parts, &placement, options), options)?;
    Ok(Chosen { placement, reason: format!("its matrices are shared out among {} cards", cards.len()) })
}

impl Division {
    fn check(&self, parts: &PartBytes, layers: usize, cards: usize, cpu: bool) -> Result<()> {
        let sound = |share: &f64| share.is_finite() && *share >= 0.0;
        if !self.shares.is_empty() && (self.shares.len() != cards || !self.shares.iter().all(sound)) {
            let found = match cards {
                1 => format!("{} shares for one card", self.shares.len()),
                _ => format!("{} shares for {cards} cards", self.shares.len()),
            };
            return refuse("tensor_split", format!("{found}; give each card one, a number not below 0"));
        }
        if !self.shares.is_empty() && self.shares.iter().sum::<f64>() <= 0.0 {
            return refuse("tensor_split", "no card has a share; give one of them a number above 0");
        }
        if self.cpu_moe.is_some_and(|count| count > 0) && !parts.is_sparse() {
            return refuse("n_cpu_moe", "this model has no experts; leave it out or give --gpu-layers");
        }
        let off = self.gpu_layers.is_some_and(|count| count <= layers) || self.cpu_moe.is_some_and(|n| n > 0);
        if off && !cpu {
            return refuse(
                "device",
                "the parts that are not for cards need the CPU; add it: --device cuda,cpu",
            );
        }
        Ok(())
    }
}

impl<'a> Divided<'a> {
    /// The same among so many of the cards: each alone in turn, or those with the largest shares.
    fn on_some(&self, count: usize) -> Vec<Divided<'a>> {
        let among = |mut chosen: Vec<usize>| {
            chosen.sort_unstable();
            let cards = chosen.iter().map(|index| self.cards[*index].clone()).collect();
            let shares = chosen.iter().map(|index| self.shares[*index]).collect();
            Divided { cards, shares, ..*self }
        };
        let mut order: Vec<usize> = (0..self.cards.len()).collect();
        if count == 1 {
            return order.into_iter().map(|index| among(vec![index])).collect();
        }
        order.sort_by(|a, b| self.shares[*b].total_cmp(&self.shares[*a]));
        order.truncate(count);
        vec![among(order)]
    }

    fn plan(&self, placement: &Placement) -> Result<MemoryPlan> {
        MemoryPlan::of(Planned::new(self.config, self.parts, placement, self.options), self.options)
    }

    /// Whether it fits with a context that is worth having.
    fn fits(&self, placement: &Placement) -> bool {
        let wanted = self.config.max_position_embeddings.min(WANTED_CONTEXT);
        let enough = |plan: &MemoryPlan| self.options.context != Context::Auto || plan.context >= wanted;
        self.plan(placement).is_ok_and(|plan| enough(&plan))
    }

    /// What fits beside the CPU: experts go there first, then layers.
    fn beside_cpu(&self) -> Result<Chosen> {
        let layers = self.config.num_hidden_layers;
        let sparse = self.parts.is_sparse();
        let own = |card| usable_on(card, self.options);
        let all = self.cards.iter().map(own).try_fold(0_u64, |sum, bytes| Some(sum.saturating_add(bytes?)));
        let room = all.map_or(String::new(), |bytes| format!(" into {}", Bytes(bytes)));
        for experts in (1..=layers).filter(|_| sparse) {
            let placement = self.split(layers + 1, experts);
            if self.fits(&placement) {
                let reason = format!("the experts of {experts} of {layers} layers do not fit{room}");
                return Ok(Chosen { placement, reason });
            }
        }
        for on_cards in (1..=layers).rev() {
            let placement = self.split(on_cards, if sparse { layers } else { 0 });
            if self.fits(&placement) {
                let left = layers + 1 - on_cards;
                let reason = format!("{left} of {layers} layers do not fit{room}");
                return Ok(Chosen { placement, reason });
            }
        }
        let placement = self.split(0, 0);
        self.plan(&placement)?;
        Ok(Chosen { placement, reason: format!("no layer fits{room}") })
    }

    /// The last `on_cards` layers on cards, the head counting as one, shared out among them in order; the experts of the
    /// first layers on the CPU.
    fn split(&self, on_cards: usize, cpu_experts: usize) -> Placement {
        let layers = self.config.num_hidden_layers;
        let host = self.cpu.unwrap_or(&self.cards[0]);
        let first = (layers + 1).saturating_sub(on_cards);
        if first > layers {
            return Placement::on(host);
        }
        let cost = |layer: usize| {
            let cache = &self.config.caches.layers()[layer];
            let kv =
                cache.bytes_per_token(self.options.kv_dtype) * WANTED_CONTEXT * self.options.max_sequences;
            let state = cache.state_bytes(self.options.rollback, self.options.max_sequences).unwrap_or(0);
            let experts = if layer < cpu_experts { 0 } else { self.parts.experts[layer] };
            (self.parts.layers[layer] + experts + (kv + state) as u64) as f64
        };
        let head = (self.parts.head + if self.parts.tied { self.parts.embedding } else { 0 }) as f64;
        let all = head + (first..layers).map(cost).sum::<f64>();
        let shares: f64 = self.shares.iter().sum();
        // A layer goes to the card whose part of the whole its middle lies in.
        let card = |middle: f64| {
            let mut end = 0.0;
            let place = self.shares.iter().position(|share| {
                end += share / shares * all;
                middle < end
            });
            let last = self.shares.iter().rposition(|share| *share > 0.0).unwrap_or(0);
            &self.cards[place.unwrap_or(last).min(last)]
        };
        let mut placement = Placement::on(if first == 0 { card(0.0) } else { host });
        let mut before = 0.0;
        for layer in first..layers {
            let own = cost(layer);
            placement = placement.with_layers(layer..layer + 1, card(before + own / 2.0));
            before += own;
        }
        placement = placement.with_head(card(before + head / 2.0));
        if let Some(cpu) = self.cpu.filter(|_| self.parts.is_sparse()) {
            placement = placement.with_experts(0..cpu_experts.min(layers), cpu);
        }
        placement
    }
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
