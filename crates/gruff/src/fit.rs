//! Which quantization of a model suits a machine.

use std::path::Path;

use gruff_engine::{Context, EngineOptions, MemoryPlan};
use gruff_gguf::{Gguf, Unfinished};
use gruff_hub::{GgufSet, Hub, RepoId};
use gruff_kernels::{CpuOptions, Device};

use crate::{Checkpoint, Error, Pretrained, Result};

/// How much of a header is fetched at first. A vocabulary of 250,000 tokens takes about 11 MB.
const FIRST_BYTES: u64 = 1 << 20;

/// Bits a weight beyond which speed is paid and nothing is gained that can be measured: those of Q6_K mixes.
const ENOUGH_BITS: f64 = 6.7;

/// What the presets of llama-quantize cost Llama 3 8B, in perplexity: the figures that its `--help` lists.
const LOSSES: &[(&str, f64)] = &[
    ("Q2_K", 3.5199),
    ("Q2_K_S", 3.1836),
    ("Q3_K_S", 1.6321),
    ("Q3_K_M", 0.6569),
    ("Q3_K_L", 0.5562),
    ("Q4_0", 0.4685),
    ("Q4_1", 0.4511),
    ("Q4_K_S", 0.2689),
    ("Q4_K_M", 0.1754),
    ("Q5_0", 0.1316),
    ("Q5_1", 0.1062),
    ("Q5_K_S", 0.1049),
    ("Q5_K_M", 0.0569),
    ("Q6_K", 0.0217),
    ("Q8_0", 0.0026),
];

/// What a machine has, and what is wanted of it.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Tokens a sequence may have; fewer where a model was trained for fewer.
    pub context: usize,
    /// Memory that may be used, in bytes.
    pub memory: u64,
    /// Bytes that it reads in a second, where that was measured.
    pub bandwidth: Option<f64>,
}

/// How one variant of a model fits.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The file, or the first part of a split one.
    pub name: String,
    /// The quantization, as the file's name tells it.
    pub quantization: Option<String>,
    /// Bytes of all parts.
    pub size: u64,
    /// Bits a weight, scales included.
    pub bits: f64,
    /// What this quantization costs Llama 3 8B in perplexity, where that is known.
    pub loss: Option<f64>,
    /// Where memory goes.
    pub plan: MemoryPlan,
    /// Whether that is there.
    pub fits: bool,
    /// Tokens a second at most: what reading each token's weights and state takes.
    pub tokens_per_second: Option<f64>,
}

/// Looks at an opened model. Only its header is read.
///
/// # Errors
/// When gruff cannot run the model, or the file contradicts itself.
pub fn fit(checkpoint: &Checkpoint, machine: &Machine) -> Result<Fit> {
    fit_named(
        checkpoint.gguf(),
        checkpoint.bytes_per_token()?,
        checkpoint.parameters(),
        checkpoint.name(),
        machine,
    )
}

fn fit_named(
    gguf: &Gguf,
    bytes_per_token: u64,
    parameters: u64,
    name: String,
    machine: &Machine,
) -> Result<Fit> {
    let device = Device::cpu(CpuOptions::default())?;
    let model = gruff_models::load(gguf, &device)?;
    let context = machine.context.min(model.config().max_position_embeddings);
    let options = EngineOptions {
        context: Context::Tokens(context),
        memory: Some(u64::MAX),
        ..EngineOptions::default()
    };
    let mut plan = MemoryPlan { available: Some(machine.memory), ..MemoryPlan::new(&*model, &options)? };
    plan.devices.iter_mut().for_each(|device| device.available = Some(machine.memory));
    let set = GgufSet { parts: vec![name.clone()], missing: Vec::new(), size: None };
    let quantization = set.quant().map(str::to_owned);
    let loss = quantization.as_ref().and_then(|found| {
        LOSSES.iter().find(|(preset, _)| preset.eq_ignore_ascii_case(found)).map(|(_, loss)| *loss)
    });
    let read = bytes_per_token.saturating_add(plan.state).max(1);
    let bytes: u64 = gguf.tensors().filter_map(|tensor| tensor.bytes()).sum();
    Ok(Fit {
        name,
        quantization,
        size: gguf.file_size(),
        bits: bytes as f64 * 8.0 / parameters.max(1) as f64,
        loss,
        fits: plan.fits(machine.memory),
        tokens_per_second: machine.bandwidth.map(|bandwidth| bandwidth / read as f64),
        plan,
    })
}

/// Looks at a variant in a repository of the Hub, of which the headers alone are fetched.
///
/// # Errors
/// As [`fit`], and what the Hub says.
pub fn fit_remote(
    hub: &Hub,
    repo: &RepoId,
    commit: &str,
    variant: &GgufSet,
    machine: &Machine,
) -> Result<Fit> {
    if let Some(missing) = variant.missing.first() {
        return Err(Error::Option(format!("{missing} is not in {repo}, so {} is not whole", variant.name())));
    }
    // Models are put together from mapped files. These have the header and a hole where the tensors would be.
    let folder = Unfinished::scratch(tempfile::tempdir().map_err(Error::Scratch)?.keep());
    let base = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    for part in &variant.parts {
        let path = folder.path().join(base(part));
        write_header(hub, repo, commit, part, &path)?;
    }
    let first = folder.path().join(base(variant.name()));
    let checkpoint = Pretrained::<crate::AutoTokenizer>::new(first.display().to_string()).checkpoint()?;
    fit_named(
        checkpoint.gguf(),
        checkpoint.bytes_per_token()?,
        checkpoint.parameters(),
        variant.name().to_owned(),
        machine,
    )
}

fn write_header(hub: &Hub, repo: &RepoId, commit: &str, part: &str, path: &Path) -> Result<()> {
    let remote = hub.remote_file(repo, commit, part)?;
    let mut header = Vec::new();
    let mut wanted = FIRST_BYTES;
    loop {
        header.extend(remote.read(header.len() as u64, wanted)?);
        if Gguf::from_beginning(header.as_slice(), remote.size())?.is_some() {
            break;
        }
        wanted = wanted.saturating_mul(2);
    }
    let written = std::fs::write(path, &header)
        .and_then(|()| std::fs::OpenOptions::new().write(true).open(path)?.set_len(remote.size()));
    written.map_err(Error::Scratch)
}

/// The one to take: of those that fit, the best one among those of at most 6.7 bits a weight (more costs speed and
/// gains nothing that can be measured), else the smallest.
pub fn best(fits: &[Fit]) -> Option<usize> {
    let fitting = || fits.iter().enumerate().filter(|(_, fit)| fit.fits);
    fitting()
        .filter(|(_, fit)| fit.bits <= ENOUGH_BITS)
        .max_by(|(_, a), (_, b)| a.bits.total_cmp(&b.bits))
        .or_else(|| fitting().min_by(|(_, a), (_, b)| a.size.cmp(&b.size)))
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(bits: f64, fits: bool) -> Fit {
        let plan = MemoryPlan {
            context: 1,
            max_sequences: 1,
            weights: 0,
            cache_tokens: 0,
            kv: 0,
            state: 0,
            prefix_tokens: 0,
            prefix_cache: 0,
            snapshots: 0,
            step_tokens: 0,
            mixed_tokens: 0,
            scratch: 0,
            recordings: 0,
            available: None,
            devices: Vec::new(),
        };
        let (name, quantization) = (String::new(), None);
        Fit {
            name,
            quantization,
            size: (bits * 1e6) as u64,
            bits,
            loss: None,
            plan,
            fits,
            tokens_per_second: None,
        }
    }

    #[test]
    fn the_best_that_fits_is_taken_but_no_waste() {
        let of = |list: &[(f64, bool)]| {
            best(&list.iter().map(|&(bits, fits)| variant(bits, fits)).collect::<Vec<_>>())
        };
        assert_eq!(of(&[(2.6, true), (4.8, true), (6.6, true), (8.5, true), (16.0, true)]), Some(2));
        assert_eq!(of(&[(2.6, true), (4.8, true), (6.6, false)]), Some(1));
        assert_eq!(of(&[(16.0, true), (8.5, true)]), Some(1));
        assert_eq!(of(&[(4.8, false)]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_file_is_measured_by_its_header() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-9m-Q4_K_M.gguf");
        let checkpoint = Pretrained::<crate::AutoTokenizer>::new(path).checkpoint().unwrap();
        let machine = Machine { context: 2048, memory: 4 << 30, bandwidth: Some(10e9) };
        let found = fit(&checkpoint, &machine).unwrap();
        assert_eq!((found.quantization.as_deref(), found.loss), (Some("Q4_K_M"), Some(0.1754)));
        assert!(found.fits && (5.0..5.3).contains(&found.bits), "{found:?}");
        // Three layers of attention with two heads of 64, keys and values in two bytes each.
        assert_eq!((found.plan.context, found.plan.kv), (2048, 2048 * 3 * 2 * 64 * 2 * 2));
        let per_token = 10e9 / found.tokens_per_second.unwrap();
        assert!((7e6..8e6).contains(&per_token), "weights and state: {per_token}");
        let small = Machine { memory: 100 << 20, context: 1 << 20, ..machine };
        let found = fit(&checkpoint, &small).unwrap();
        assert!(!found.fits && found.plan.context == 4096);
    }
}
