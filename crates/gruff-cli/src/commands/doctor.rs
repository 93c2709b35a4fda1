use std::io::Write;

use clap::Args;
use gruff::floors::blocks::BlockType;
use gruff::floors::kernels::topology::Topology;
use gruff::floors::kernels::{Collective, Device, Isa, cuda};
use gruff::{AutoModelForCausalLM, Checkpoint, FromCheckpoint, Hub, LoadOptions, system};

use crate::args::{ComputeArgs, SourceArgs};
use crate::console::{Console, stdout};
use crate::size::Bytes;

/// Show what this machine offers and what falls back to slower code
///
/// With MODEL also which of its tensors do, and where its memory goes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff doctor\n  gruff doctor model.gguf --ctx 8192")]
pub(crate) struct Doctor {
    /// A model to look at
    model: Option<String>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

impl Doctor {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let options = self.compute.options(&self.source);
        let device = options.open_device()?;
        let checkpoint = self.model.as_ref().map(|model| self.source.open(model, console)).transpose()?;
        let mut out = stdout();
        line(&mut out, "gruff", env!("CARGO_PKG_VERSION"))?;
        line(&mut out, "system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH))?;
        if let Some(name) = system::cpu_name() {
            line(&mut out, "processor", name)?;
        }
        core_lines(&mut out, &Topology::here())?;
        line(&mut out, "features", features())?;
        let kernels: Vec<&str> = Isa::ALL.into_iter().filter(|isa| isa.available()).map(Isa::name).collect();
        line(&mut out, "kernels", kernels.join(", "))?;
        line(&mut out, "memory", memory(&options))?;
        cuda_lines(&mut out)?;
        let asked = options.device.as_deref().unwrap_or("auto");
        line(&mut out, "device", format!("{} (by --device {asked})", device.name()))?;
        match Hub::builder().build() {
            Ok(hub) => {
                line(&mut out, "hub", hub.endpoint())?;
                line(&mut out, "cache", hub.cache().root().display())?;
            }
            Err(error) => line(&mut out, "hub", error)?,
        }
        let types: Vec<BlockType> = BlockType::ALL.to_vec();
        writeln!(out, "\nmatrix products on {}", device.name())?;
        products(&mut out, &device, &types)?;
        if let Some(checkpoint) = checkpoint {
            diagnose(&mut out, &checkpoint, &options)?;
        }
        Ok(out.flush()?)
    }
}

fn line(out: &mut impl Write, name: &str, value: impl std::fmt::Display) -> std::io::Result<()> {
    writeln!(out, "{name:<10} {value}")
}

/// The cores that this process may use, by speed; their memory nodes, where there are several; and how many threads compute
/// unless told otherwise.
fn core_lines(out: &mut impl Write, topology: &Topology) -> std::io::Result<()> {
    let (cores, threads) = (topology.cores().len(), topology.hardware_threads());
    let kinds: Vec<String> = topology
        .speeds()
        .into_iter()
        .map(|(speed, count)| format!("{count} at {:.0} % of the fastest", 100.0 * speed))
        .collect();
    let kinds = if kinds.len() > 1 { format!(": {}", kinds.join(", ")) } else { String::new() };
    line(
        out,
        "cores",
        format!("{cores} physical, {threads} hardware threads, usable by this process{kinds}"),
    )?;
    if topology.nodes() > 1 {
        let nodes = topology.nodes();
        let advice = "numactl --interleave=all gruff .. spreads weights and caches over them";
        line(out, "nodes", format!("{nodes} memory nodes; {advice}"))?;
    }
    line(out, "threads", format!("{} unless --threads says otherwise", topology.default_threads()))
}

/// The NVIDIA cards of this machine and the compiler for their kernels, or what is missing.
fn cuda_lines(out: &mut impl Write) -> std::io::Result<()> {
    let cards = match cuda::cards() {
        Ok(cards) if !cards.is_empty() => cards,
        Ok(_) => return line(out, "cuda", "the driver shows no card"),
        Err(error) => return line(out, "cuda", error),
    };
    for card in &cards {
        let (major, minor) = card.capability;
        line(
            out,
            "cuda",
            format!(
                "cuda:{} {}, compute {major}.{minor}, {}, driver for CUDA {}.{}",
                card.ordinal,
                card.name,
                Bytes(card.memory_bytes as u64),
                card.driver / 1000,
                card.driver % 1000 / 10
            ),
        )?;
    }
    match cuda::Nvrtc::find(cards[0].driver) {
        Ok(nvrtc) => {
            let (major, minor) = nvrtc.version();
            line(out, "nvrtc", format!("{major}.{minor} at {}", nvrtc.path()))?;
        }
        Err(error) => line(out, "nvrtc", error)?,
    }
    // What several cards compute together through.
    match Collective::library() {
        Ok(found) => line(out, "nccl", found),
        Err(error) => line(out, "nccl", error),
    }
}

/// One line a kernel, with the types that it serves.
fn products(out: &mut impl Write, device: &Device, types: &[BlockType]) -> std::io::Result<()> {
    let mut kernels: Vec<(String, Vec<String>)> = Vec::new();
    for block_type in types {
        let kernel = device.matmul_kernel(*block_type);
        let name =
            format!("{}{}", kernel.name, if kernel.fast { "" } else { " (slow: unpacks tile by tile)" });
        match kernels.iter_mut().find(|(known, _)| *known == name) {
            Some((_, served)) => served.push(block_type.to_string()),
            None => kernels.push((name, vec![block_type.to_string()])),
        }
    }
    for (name, served) in kernels {
        writeln!(out, "  {name}: {}", served.join(" "))?;
    }
    Ok(())
}

/// What a model falls back in, and where its memory goes.
fn diagnose(out: &mut impl Write, checkpoint: &Checkpoint, options: &LoadOptions) -> anyhow::Result<()> {
    let model = AutoModelForCausalLM::from_checkpoint(checkpoint, options)?;
    writeln!(out, "\n{}", checkpoint.name())?;
    let mut slow = Vec::new();
    for tensor in checkpoint.gguf().tensors().filter(|tensor| tensor.shape().len() > 1) {
        let block_type = tensor.block_type()?;
        if !block_type.is_scalar() && !model.device().matmul_kernel(block_type).fast {
            slow.push((block_type.to_string(), tensor.bytes().unwrap_or(0)));
        }
    }
    if slow.is_empty() {
        writeln!(out, "  every packed matrix has a fast kernel")?;
    } else {
        let bytes = slow.iter().map(|(_, bytes)| bytes).sum();
        let mut types: Vec<&str> = slow.iter().map(|(name, _)| name.as_str()).collect();
        types.sort_unstable();
        types.dedup();
        let count = slow.len();
        writeln!(out, "  {count} matrices ({}) have no fast kernel: {}", Bytes(bytes), types.join(", "))?;
    }
    writeln!(out, "  device: {}", model.devices())?;
    let memory = model.memory()?;
    writeln!(out, "  memory: {memory}")?;
    Ok(())
}

fn memory(options: &LoadOptions) -> String {
    match options.memory.or_else(system::available_memory) {
        Some(bytes) => format!("{} available", Bytes(bytes)),
        None => "unknown: this system does not tell".to_owned(),
    }
}

/// The processor's features that matter for kernels, used yet or not.
fn features() -> String {
    let found = system::cpu_features();
    if found.is_empty() { "none that kernels could use".to_owned() } else { found.join(" ") }
}
