//! The low-rank adapters of a model: which there are, and what is on in a step.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use gruff_kernels::{Step, Tensor};

use crate::lora::{Lora, LoraPair};
use crate::versioned::Versioned;
use crate::{Error, Result};

/// Scales of adapters by name, for one sequence of a step. An adapter that is not named is off.
pub type LoraScales = BTreeMap<String, f32>;

#[derive(Clone)]
struct Loaded {
    name: String,
    lora: Arc<Lora>,
    scale: f32,
}

/// The adapters of one model, in the order in which they came.
#[derive(Clone, Default)]
pub struct Adapters {
    loaded: Arc<Versioned<Vec<Loaded>>>,
    /// Whether there can be none.
    closed: bool,
}

impl Adapters {
    /// Those of a model that takes none.
    pub(crate) fn closed() -> Self {
        Self { closed: true, ..Self::default() }
    }

    /// Adds an adapter, on at `scale` for sequences that say nothing else.
    ///
    /// # Errors
    /// [`Error::Adapter`] when the name is taken or the scale is not a number, [`Error::Shared`] for a model whose matrices
    /// are shared out among devices.
    pub fn add(&self, name: &str, lora: Lora, scale: f32) -> Result<()> {
        if self.closed {
            return Err(Error::Shared { what: "adapters" });
        }
        check_scale(name, scale)?;
        self.loaded.change(|loaded| {
            if loaded.iter().any(|known| known.name == name) {
                let fault = "is the name of an adapter that is loaded already".to_owned();
                return Err(Error::Adapter { name: name.to_owned(), fault });
            }
            loaded.push(Loaded { name: name.to_owned(), lora: Arc::new(lora), scale });
            Ok(())
        })
    }

    /// Changes the scale that an adapter has for sequences that say nothing else; 0 is off.
    ///
    /// # Errors
    /// [`Error::Adapter`] when there is none of that name or the scale is not a number.
    pub fn set_scale(&self, name: &str, scale: f32) -> Result<()> {
        check_scale(name, scale)?;
        self.loaded.change(|loaded| {
            let known = loaded.iter_mut().find(|known| known.name == name);
            known.ok_or_else(|| unknown(name))?.scale = scale;
            Ok(())
        })
    }

    /// Takes an adapter away.
    ///
    /// # Errors
    /// [`Error::Adapter`] when there is none of that name.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.loaded.change(|loaded| {
            let at = loaded.iter().position(|known| known.name == name).ok_or_else(|| unknown(name))?;
            loaded.remove(at);
            Ok(())
        })
    }

    /// Names and scales.
    pub fn scales(&self) -> LoraScales {
        self.loaded.get().iter().map(|known| (known.name.clone(), known.scale)).collect()
    }

    /// Checks the scales that a sequence asks for.
    ///
    /// # Errors
    /// [`Error::Adapter`] for a name that is not loaded or a scale that is not a number.
    pub fn check(&self, scales: &LoraScales) -> Result<()> {
        let loaded = self.loaded.get();
        for (name, scale) in scales {
            check_scale(name, *scale)?;
            if !loaded.iter().any(|known| known.name == *name) {
                return Err(unknown(name));
            }
        }
        Ok(())
    }

    pub(crate) fn revision(&self) -> u64 {
        self.loaded.revision()
    }

    /// What is on in a step; `None` when nothing is. `scales` are those of its sequences, where they say.
    pub(crate) fn active(
        &self,
        step: &Step,
        scales: Option<&[LoraScales]>,
    ) -> Result<Option<ActiveAdapters>> {
        let loaded = self.loaded.get();
        if let Some(scales) = scales {
            if scales.len() != step.sequences().len() {
                let what = format!("scales for {} of {} sequences", scales.len(), step.sequences().len());
                return Err(gruff_kernels::Error::Shape { op: "adapters", what }.into());
            }
            scales.iter().try_for_each(|scales| self.check(scales))?;
        }
        let mut active = Vec::new();
        for known in loaded.iter() {
            let scale = |index: usize| match scales {
                Some(scales) => scales[index].get(&known.name).copied().unwrap_or(0.0),
                None => known.scale,
            };
            let scales: Vec<f32> = (0..step.sequences().len()).map(scale).collect();
            if scales.iter().any(|scale| *scale != 0.0) {
                active.push((known.lora.clone(), scales));
            }
        }
        Ok((!active.is_empty()).then_some(ActiveAdapters(active)))
    }
}

impl fmt::Debug for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Adapters").field(&self.scales()).finish()
    }
}

fn unknown(name: &str) -> Error {
    Error::Adapter { name: name.to_owned(), fault: "is not the name of an adapter that is loaded".to_owned() }
}

fn check_scale(name: &str, scale: f32) -> Result<()> {
    if scale.is_finite() {
        return Ok(());
    }
    Err(Error::Adapter { name: name.to_owned(), fault: format!("cannot have the scale {scale}") })
}

/// The adapters that are on in a step, each with a scale a sequence.
pub(crate) struct ActiveAdapters(Vec<(Arc<Lora>, Vec<f32>)>);

/// Rows that one adapter adds to: neighbours whose sequences all have it on.
pub(crate) struct Rows<'a> {
    pub(crate) start: usize,
    /// For each row its sequence.
    pub(crate) owners: &'a [usize],
    /// The adapter's scale for each sequence.
    pub(crate) scales: &'a [f32],
}

impl Rows<'_> {
    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }

    /// Those of `x`, which has `each` rows for each of them.
    pub(crate) fn of(&self, x: &Tensor, each: usize) -> Result<Tensor> {
        Ok(x.narrow(0, self.start * each, self.len() * each)?)
    }
}

impl ActiveAdapters {
    /// Whether any stands beside `module`.
    pub(crate) fn adapt(&self, module: &str) -> bool {
        self.0.iter().any(|(lora, _)| lora.pair(module).is_some())
    }

    /// Has every adapter beside `module` add to its output, to the rows of sequences that have it on. Row r is of
    /// sequence `owners[r]`. A row's sum depends on the row and the scales of its own sequence only.
    pub(crate) fn apply(
        &self,
        module: &str,
        owners: &[usize],
        add: impl Fn(&LoraPair, &Rows) -> Result<()>,
    ) -> Result<()> {
        for (lora, scales) in &self.0 {
            let Some(pair) = lora.pair(module) else { continue };
            let mut start = 0;
            while start < owners.len() {
                let on = scales[owners[start]] != 0.0;
                let len = owners[start..].iter().take_while(|owner| (scales[**owner] != 0.0) == on).count();
                if on {
                    add(pair, &Rows { start, owners: &owners[start..start + len], scales })?;
                }
                start += len;
            }
        }
        Ok(())
    }
}
