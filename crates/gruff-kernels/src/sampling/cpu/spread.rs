//! How the weight of a row's ids is spread over their values: draws from any distribution without sorting it.

use std::ops::Range;
use std::sync::Mutex;

use super::super::{SampleSpec, uniform};
use super::scan::{Likelihood, weigh};
use crate::cpu::CpuDevice;

/// Values that a thread takes at a time. Their sums are added in order, so threads change no bits.
const PART: usize = 1 << 14;

/// Values whose weights are computed before they are sorted into bins.
const STRIP: usize = 512;

/// Bins, and how many of them a factor of e in weight takes: the last ones have weights below e^-31.
const BINS: usize = 2048;
const BINS_PER_E: f32 = 64.0;

/// Candidates that are sorted instead of being divided further.
const FEW: usize = 64;

/// A row with its weights summed in bins.
pub(super) struct Spread<'a> {
    device: &'a CpuDevice,
    row: &'a [f32],
    likelihood: Likelihood,
    /// The sum of weights in each bin; bins are in descending order of value.
    masses: Vec<f64>,
    /// The sum of the weights that min-p keeps.
    likely: f64,
}

/// Where a sum of weights in descending order reaches a target.
#[derive(Clone, Copy)]
struct Place {
    id: u32,
    /// The sum with this id's weight.
    mass: f64,
}

impl<'a> Spread<'a> {
    pub(super) fn of(device: &'a CpuDevice, row: &'a [f32], likelihood: Likelihood, min_p: f32) -> Self {
        let mut spread = Self { device, row, likelihood, masses: vec![0.0; BINS], likely: 0.0 };
        for (masses, likely) in spread.parts(8, |part| spread.sum_part(part, f64::from(min_p))) {
            spread.masses.iter_mut().zip(masses).for_each(|(sum, mass)| *sum += mass);
            spread.likely += likely;
        }
        spread
    }

    /// Draws an id: top-p, min-p, and the random number of the spec.
    pub(super) fn draw(&self, spec: &SampleSpec) -> usize {
        let mut mass = self.masses.iter().sum::<f64>();
        if spec.top_p < 1.0 {
            mass = self.reach(f64::from(spec.top_p) * mass, false).mass;
        }
        if spec.min_p > 0.0 {
            // The most likely id, whose weight is 1, is kept always.
            mass = mass.min(self.likely.max(1.0));
        }
        self.reach(uniform(spec.seed, spec.position) * mass, true).id as usize
    }

    /// The bin of a value: monotone, whatever it rounds.
    #[inline(always)]
    fn bin(&self, x: f32) -> usize {
        let distance = (self.likelihood.largest - x) * (BINS_PER_E / self.likelihood.temperature);
        (distance as usize).min(BINS - 1)
    }

    /// Calls `work` for every part of the row; what a value takes is `cost`.
    fn parts<T: Send>(&self, cost: usize, work: impl Fn(Range<usize>) -> T + Sync) -> Vec<T> {
        let count = self.row.len().div_ceil(PART);
        let results: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::new(None)).collect();
        self.device.share(count, PART * cost, |range| {
            for part in range {
                let result = work(part * PART..((part + 1) * PART).min(self.row.len()));
                *results[part].lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(result);
            }
        });
        let take =
            |result: Mutex<Option<T>>| result.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        results.into_iter().filter_map(take).collect()
    }

    fn sum_part(&self, part: Range<usize>, least: f64) -> (Vec<f64>, f64) {
        let mut masses = vec![0.0; BINS];
        let mut likely = 0.0;
        let mut weights = [0.0; STRIP];
        for strip in self.row[part].chunks(STRIP) {
            weigh(self.device.isa(), strip, self.likelihood, &mut weights);
            for (x, weight) in strip.iter().zip(&weights) {
                masses[self.bin(*x)] += weight;
                if *weight >= least {
                    likely += weight;
                }
            }
        }
        (masses, likely)
    }

    /// The first id, in descending order of value and ascending order of index, with which the sum of weights reaches
    /// `target`, or is `beyond` it.
    fn reach(&self, target: f64, beyond: bool) -> Place {
        let reached = |mass: f64| if beyond { mass > target } else { mass >= target };
        let mut before = 0.0;
        let mut last = 0;
        for (bin, mass) in self.masses.iter().enumerate() {
            if *mass == 0.0 {
                continue;
            }
            last = bin;
            if reached(before + mass) {
                return self.within(bin, before, &reached);
            }
            before += mass;
        }
        // Rounding alone leads here: the last id that weighs anything.
        self.within(last, before - self.masses[last], &|_| false)
    }

    /// The first id of a bin with which a sum that is `before` at its start is `reached`; the last one if it never is.
    fn within(&self, bin: usize, mut before: f64, reached: &impl Fn(f64) -> bool) -> Place {
        let row = self.row;
        let of_part = |part: Range<usize>| -> Vec<u32> {
            let start = part.start;
            let values = row[part].iter().enumerate();
            let here = values.filter(|(_, x)| self.bin(**x) == bin && !x.is_nan());
            here.map(|(i, _)| (start + i) as u32).collect()
        };
        let mut ids: Vec<u32> = self.parts(1, of_part).concat();
        let order = |a: &u32, b: &u32| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b));
        let weight = |id: &u32| self.likelihood.of(row[*id as usize]);
        let mut ids = ids.as_mut_slice();
        while ids.len() > FEW {
            let middle = ids.len() / 2;
            ids.select_nth_unstable_by(middle, order);
            let (more, less) = ids.split_at_mut(middle);
            let mass: f64 = more.iter().map(weight).sum();
            if reached(before + mass) {
                ids = more;
            } else {
                before += mass;
                ids = less;
            }
        }
        ids.sort_unstable_by(order);
        let mut place = Place { id: ids.first().copied().unwrap_or(0), mass: before };
        for id in ids.iter() {
            place = Place { id: *id, mass: place.mass + weight(id) };
            if reached(place.mass) {
                break;
            }
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use crate::conformance::Values;
    use crate::sampling::{SampleSpec, sample};
    use crate::{Activations, CpuOptions, DType, Device};

    /// Distributions that a few hundred ids do not decide, beside the reference's full sort.
    #[test]
    fn flat_distributions_are_drawn_from_as_by_a_full_sort() {
        let devices = [1, 3].map(|threads| {
            Device::cpu(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap()
        });
        let reference = Device::reference(Activations::F32);
        let width = 70_000;
        let mut values = Values::new(5);
        let mut normal = values.normal(width, 1.0);
        normal[17] = f32::NAN;
        normal[18] = f32::NEG_INFINITY;
        let ties: Vec<f32> = normal.iter().map(|x| x.round()).collect();
        let equal = vec![1.5; width];
        // One bin of values that all differ.
        let close: Vec<f32> = (0..width).map(|i| 1.0 - (i * 7919 % width) as f32 * 1e-7).collect();
        for row in [normal, ties, equal, close] {
            for (top_p, min_p, temperature) in
                [(1.0, 0.0, 1.0), (0.95, 0.0, 0.7), (0.5, 0.0, 20.0), (1.0, 0.02, 1.0), (0.9, 0.3, 3.0)]
            {
                let specs: Vec<SampleSpec> = (0..6)
                    .map(|seed| SampleSpec {
                        temperature,
                        top_k: 0,
                        top_p,
                        min_p,
                        repetition_penalty: 1.0,
                        penalized: Vec::new(),
                        seed,
                        position: seed + 1,
                    })
                    .collect();
                let draw = |device: &Device| {
                    let logits = device.tensor_f32(&row.repeat(specs.len()), &[specs.len(), width]).unwrap();
                    let ids = device.zeros(DType::I32, &[specs.len()]).unwrap();
                    sample(&logits, &specs, &ids).unwrap();
                    ids.to_vec_i32().unwrap()
                };
                let expected = draw(&reference);
                for device in &devices {
                    assert_eq!(draw(device), expected, "{top_p} {min_p} {temperature} on {}", device.name());
                }
            }
        }
    }
}
