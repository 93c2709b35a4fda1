//! Tiny random models of every architecture, and ways to run them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use gruff_blocks::BlockType;
use gruff_gguf::{Gguf, Metadata, Value, Writer};
use gruff_kernels::{Activations, CpuOptions, Device, KvDtype, PAGE_LEN, Step, StepSequence, StepTokens};
use gruff_models::{CacheOptions, Caches, Model};

pub const ARCHITECTURES: [&str; 7] = ["llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "qwen35", "qwen35moe"];

pub const VOCAB: u64 = 96;
const HIDDEN: u64 = 64;
const FF: u64 = 96;
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const HEAD_DIM: u64 = 32;
const EXPERTS: u64 = 4;
/// What [`File::width`] is unless it is told.
const WIDTH: u64 = 16;

/// A GGUF file in the making.
#[derive(Clone)]
pub struct File {
    pub metadata: Metadata,
    pub tensors: Vec<Entry>,
    /// Width of the heads of a gated delta net, and half that of experts.
    pub width: u64,
}

#[derive(Clone)]
pub struct Entry {
    pub name: String,
    /// Row length first.
    pub shape: Vec<u64>,
    pub block_type: BlockType,
    pub values: Vec<f32>,
}

impl File {
    /// A random model whose matrices are of `block_type`.
    pub fn new(architecture: &str, block_type: BlockType) -> Self {
        Self::of_width(architecture, block_type, WIDTH)
    }

    /// One whose gated delta nets have heads of this width, and experts twice as wide.
    pub fn of_width(architecture: &str, block_type: BlockType, width: u64) -> Self {
        let mut file = Self { metadata: Metadata::new(), tensors: Vec::new(), width };
        file.metadata.insert("general.architecture", architecture);
        let layers = file.keys(architecture);
        file.matrix("token_embd.weight", &[HIDDEN, VOCAB], block_type);
        file.vector("output_norm.weight", HIDDEN, 1.0);
        if architecture != "gemma3" {
            file.matrix("output.weight", &[HIDDEN, VOCAB], block_type);
        }
        for layer in 0..layers {
            file.block(architecture, layer, block_type);
        }
        file
    }

    fn keys(&mut self, architecture: &str) -> usize {
        let qwen35 = architecture.starts_with("qwen35");
        let layers: u32 = if architecture == "gemma3" { 7 } else { 4 };
        let width = self.width as u32;
        let mut set = |key: &str, value: u32| self.metadata.insert(&format!("{architecture}.{key}"), value);
        set("block_count", layers);
        set("context_length", 512);
        set("embedding_length", HIDDEN as u32);
        set("attention.head_count", HEADS as u32);
        set("attention.head_count_kv", KV_HEADS as u32);
        set("attention.key_length", HEAD_DIM as u32);
        set("attention.value_length", HEAD_DIM as u32);
        if !architecture.ends_with("moe") {
            set("feed_forward_length", FF as u32);
        } else {
            set("expert_count", EXPERTS as u32);
            set("expert_used_count", 2);
            set("expert_feed_forward_length", 2 * width);
        }
        if architecture == "gemma3" {
            set("attention.sliding_window", 20);
        }
        if architecture == "qwen35moe" {
            set("expert_shared_feed_forward_length", 2 * width);
        }
        if qwen35 {
            set("rope.dimension_count", 16);
            set("full_attention_interval", 2);
            set("ssm.conv_kernel", 4);
            set("ssm.state_size", width);
            set("ssm.group_count", 2);
            set("ssm.time_step_rank", 4);
            set("ssm.inner_size", 4 * width);
            self.metadata.insert(&format!("{architecture}.rope.dimension_sections"), vec![3_i32, 3, 2, 0]);
        }
        self.metadata.insert(&format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-6_f32);
        layers as usize
    }

    /// Block `layer` of a model.
    pub fn block(&mut self, architecture: &str, layer: usize, t: BlockType) {
        let qwen35 = architecture.starts_with("qwen35");
        let b = |name: &str| format!("blk.{layer}.{name}");
        let (width, expert_ff) = (self.width, 2 * self.width);
        self.vector(&b("attn_norm.weight"), HIDDEN, 1.0);
        let second = if qwen35 { "post_attention_norm.weight" } else { "ffn_norm.weight" };
        self.vector(&b(second), HIDDEN, 1.0);
        if architecture == "gemma3" {
            self.vector(&b("post_attention_norm.weight"), HIDDEN, 1.0);
            self.vector(&b("post_ffw_norm.weight"), HIDDEN, 1.0);
        }
        if qwen35 && layer.is_multiple_of(2) {
            self.matrix(&b("attn_qkv.weight"), &[HIDDEN, 8 * width], t);
            self.matrix(&b("attn_gate.weight"), &[HIDDEN, 4 * width], t);
            self.matrix(&b("ssm_alpha.weight"), &[HIDDEN, 4], t);
            self.matrix(&b("ssm_beta.weight"), &[HIDDEN, 4], t);
            self.matrix(&b("ssm_conv1d.weight"), &[4, 8 * width], BlockType::F32);
            self.vector(&b("ssm_dt.bias"), 4, 0.5);
            self.vector(&b("ssm_a"), 4, -0.5);
            self.vector(&b("ssm_norm.weight"), width, 1.0);
            self.matrix(&b("ssm_out.weight"), &[4 * width, HIDDEN], t);
        } else {
            let gated = if qwen35 { 2 } else { 1 };
            self.matrix(&b("attn_q.weight"), &[HIDDEN, gated * HEADS * HEAD_DIM], t);
            self.matrix(&b("attn_k.weight"), &[HIDDEN, KV_HEADS * HEAD_DIM], t);
            self.matrix(&b("attn_v.weight"), &[HIDDEN, KV_HEADS * HEAD_DIM], t);
            self.matrix(&b("attn_output.weight"), &[HEADS * HEAD_DIM, HIDDEN], t);
            if architecture == "qwen2" {
                self.vector(&b("attn_q.bias"), HEADS * HEAD_DIM, 0.0);
                self.vector(&b("attn_k.bias"), KV_HEADS * HEAD_DIM, 0.0);
                self.vector(&b("attn_v.bias"), KV_HEADS * HEAD_DIM, 0.0);
            }
            if qwen35 || architecture.starts_with("qwen3") || architecture == "gemma3" {
                self.vector(&b("attn_q_norm.weight"), HEAD_DIM, 1.0);
                self.vector(&b("attn_k_norm.weight"), HEAD_DIM, 1.0);
            }
        }
        if !architecture.ends_with("moe") {
            self.matrix(&b("ffn_gate.weight"), &[HIDDEN, FF], t);
            self.matrix(&b("ffn_up.weight"), &[HIDDEN, FF], t);
            self.matrix(&b("ffn_down.weight"), &[FF, HIDDEN], t);
            return;
        }
        self.matrix(&b("ffn_gate_inp.weight"), &[HIDDEN, EXPERTS], BlockType::F32);
        self.matrix(&b("ffn_gate_exps.weight"), &[HIDDEN, expert_ff, EXPERTS], t);
        self.matrix(&b("ffn_up_exps.weight"), &[HIDDEN, expert_ff, EXPERTS], t);
        self.matrix(&b("ffn_down_exps.weight"), &[expert_ff, HIDDEN, EXPERTS], t);
        if qwen35 {
            self.matrix(&b("ffn_gate_inp_shexp.weight"), &[HIDDEN], BlockType::F32);
            self.matrix(&b("ffn_gate_shexp.weight"), &[HIDDEN, expert_ff], t);
            self.matrix(&b("ffn_up_shexp.weight"), &[HIDDEN, expert_ff], t);
            self.matrix(&b("ffn_down_shexp.weight"), &[expert_ff, HIDDEN], t);
        }
    }

    /// Adds a matrix of random values around 0.
    pub fn matrix(&mut self, name: &str, shape: &[u64], block_type: BlockType) {
        let spread = 2.0 / (shape[0] as f32).sqrt();
        let values = self.random(name, shape.iter().product()).map(|v| v * spread).collect();
        self.push(name, shape, block_type, values);
    }

    /// Adds a vector of random values around `center`.
    pub fn vector(&mut self, name: &str, len: u64, center: f32) {
        let values = self.random(name, len).map(|v| center + 0.3 * v).collect();
        self.push(name, &[len], BlockType::F32, values);
    }

    pub fn push(&mut self, name: &str, shape: &[u64], block_type: BlockType, values: Vec<f32>) {
        self.tensors.push(Entry { name: name.into(), shape: shape.to_vec(), block_type, values });
    }

    /// Numbers in -1..1 that depend on the tensor's name.
    fn random(&self, name: &str, len: u64) -> impl Iterator<Item = f32> + use<> {
        let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        (0..len).map(move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
    }

    /// The tensor called `name`.
    pub fn tensor(&mut self, name: &str) -> &mut Entry {
        self.tensors.iter_mut().find(|entry| entry.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// Takes a tensor out.
    pub fn take(&mut self, name: &str) -> Entry {
        let at = self.tensors.iter().position(|entry| entry.name == name);
        self.tensors.remove(at.unwrap_or_else(|| panic!("no {name}")))
    }

    /// Replaces tensors by one that stacks their rows, expert by expert.
    pub fn fuse(&mut self, parts: &[&str], fused: &str) {
        let parts: Vec<Entry> = parts.iter().map(|name| self.take(name)).collect();
        let mut shape = parts[0].shape.clone();
        let stacks = shape.get(2).copied().unwrap_or(1) as usize;
        if shape.len() == 1 {
            shape[0] = parts.iter().map(|part| part.shape[0]).sum();
        } else {
            shape[1] = parts.iter().map(|part| part.shape[1]).sum();
        }
        let mut values = Vec::new();
        for stack in 0..stacks {
            for part in &parts {
                let len = part.values.len() / stacks;
                values.extend_from_slice(&part.values[stack * len..(stack + 1) * len]);
            }
        }
        self.push(fused, &shape, parts[0].block_type, values);
    }

    /// Sets a key of the architecture.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let architecture = self.metadata.require_str("general.architecture").expect("it is set").to_owned();
        self.metadata.insert(&format!("{architecture}.{key}"), value);
    }

    /// The same with a vocabulary of so many ids, at least [`VOCAB`].
    pub fn with_vocab(mut self, rows: u64) -> Self {
        for name in ["token_embd.weight", "output.weight"] {
            let Some(at) = self.tensors.iter().position(|entry| entry.name == name) else { continue };
            let entry = self.tensors.remove(at);
            self.matrix(name, &[HIDDEN, rows], entry.block_type);
        }
        self
    }

    /// The finished file.
    pub fn build(&self) -> Gguf {
        let mut writer = Writer::new(self.metadata.clone());
        for Entry { name, shape, block_type, .. } in &self.tensors {
            writer.add(name, shape, *block_type).expect("the shape is sound");
        }
        let bytes = writer.to_bytes::<gruff_gguf::Error>(|tensor| {
            let entry = self.tensors.iter().find(|entry| entry.name == tensor.name()).expect("it was added");
            let mut packed = vec![0; tensor.bytes().expect("the type is known") as usize];
            entry.block_type.pack(&entry.values, &mut packed).expect("the type can be packed");
            Ok(packed)
        });
        Gguf::from_bytes(bytes.expect("the file can be written")).expect("the file can be read")
    }

    /// The model on `device`.
    pub fn load(&self, device: &Device) -> Box<dyn Model> {
        gruff_models::load(&self.build(), device).expect("the model loads")
    }
}

/// The CPU device.
pub fn cpu(activations: Activations) -> Device {
    Device::cpu(CpuOptions { activations, ..CpuOptions::default() }).expect("the CPU is there")
}

/// Token ids that depend on `seed`.
pub fn ids(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * i * 7 + i * (seed + 3) + seed * 29) % VOCAB as u32).collect()
}

/// Caches for `sequences` sequences of up to `tokens` tokens.
pub fn caches(
    model: &dyn Model,
    kv_dtype: KvDtype,
    sequences: usize,
    tokens: usize,
    rollback: usize,
) -> Caches {
    let pages = sequences * tokens.div_ceil(PAGE_LEN);
    let options = CacheOptions { kv_dtype, pages, slots: sequences, rollback };
    model.new_caches(&options).expect("there is memory")
}

/// A sequence on its way through steps.
pub struct Sequence {
    pub ids: Vec<u32>,
    pub past: usize,
    pub slot: usize,
    pub pages: Vec<u32>,
    /// Logits of every token so far, one row a token.
    pub logits: Vec<Vec<f32>>,
}

impl Sequence {
    /// A sequence with slot `slot` of `slots`, and every `slots`-th page.
    pub fn new(ids: Vec<u32>, slot: usize, slots: usize) -> Self {
        let pages = (0..ids.len().div_ceil(PAGE_LEN)).map(|page| (page * slots + slot) as u32).collect();
        Self { ids, past: 0, slot, pages, logits: Vec::new() }
    }

    /// Drops all but the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        self.past = len;
        self.logits.truncate(len);
    }
}

/// One step with the next `lens[i]` tokens of each sequence; all logits are kept.
pub fn step(model: &dyn Model, caches: &mut Caches, sequences: &mut [Sequence], lens: &[usize]) {
    let mut tokens = Vec::new();
    let mut positions = Vec::new();
    let mut parts = Vec::new();
    for (sequence, &len) in sequences.iter().zip(lens).filter(|(_, len)| **len > 0) {
        let Sequence { ids, past, slot, pages, .. } = sequence;
        tokens.extend_from_slice(&ids[*past..past + len]);
        positions.extend((*past..past + len).map(|position| position as u32));
        parts.push(StepSequence { len, past: *past, slot: *slot, pages: pages.clone() });
    }
    let rows = (0..tokens.len() as u32).collect();
    let positions = [positions.clone(), positions.clone(), positions];
    let step = Step::new(StepTokens::Ids(tokens), positions, parts, rows).expect("the step is sound");
    let logits = model.forward(&step, caches).expect("the model runs").to_vec_f32().expect("f32");
    let mut rows = logits.chunks_exact(model.config().vocab_size).map(<[f32]>::to_vec);
    for (sequence, &len) in sequences.iter_mut().zip(lens) {
        sequence.past += len;
        sequence.logits.extend(rows.by_ref().take(len));
    }
}

/// Logits of every token of `ids`, in one step.
pub fn logits(model: &dyn Model, kv_dtype: KvDtype, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut caches = caches(model, kv_dtype, 1, ids.len(), 0);
    let mut sequences = [Sequence::new(ids.to_vec(), 0, 1)];
    step(model, &mut caches, &mut sequences, &[ids.len()]);
    let [sequence] = sequences;
    sequence.logits
}

/// Squared distance, relative to the squared length of `expected`.
pub fn nmse<'a>(
    actual: impl IntoIterator<Item = &'a [f32]>,
    expected: impl IntoIterator<Item = &'a [f32]>,
) -> f64 {
    let (mut error, mut total) = (0.0, 0.0);
    for (actual, expected) in actual.into_iter().zip(expected) {
        assert_eq!(actual.len(), expected.len());
        for (a, e) in actual.iter().zip(expected) {
            error += (f64::from(*a) - f64::from(*e)).powi(2);
            total += f64::from(*e).powi(2);
        }
    }
    error / total
}

/// The bits of rows of values.
pub fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|value| value.to_bits()).collect()
}

/// Two sequences through prompts, answers, a rollback, a snapshot and copied pages: all logits.
pub fn story(model: &dyn Model, kv_dtype: KvDtype) -> Vec<u32> {
    let mut caches = caches(model, kv_dtype, 3, 4 * PAGE_LEN, 8);
    let mut sequences = [Sequence::new(ids(1, 90), 0, 3), Sequence::new(ids(2, 90), 1, 3)];
    for lens in [[70, 5], [1, 1], [0, 20], [1, 1], [3, 4]] {
        step(model, &mut caches, &mut sequences, &lens);
    }
    sequences[0].truncate(72);
    step(model, &mut caches, &mut sequences, &[2, 1]);
    let mut all: Vec<u32> = sequences.iter().flat_map(|sequence| bits(&sequence.logits)).collect();
    // The first one goes on in the third slot.
    let past = sequences[0].past;
    let kept = caches.snapshot(0, past).expect("a snapshot");
    caches.restore(&kept, 2).expect("the same caches");
    let mut fork = Sequence::new(ids(1, 90), 2, 3);
    fork.past = past;
    for (own, from) in fork.pages.clone().into_iter().zip(sequences[0].pages.clone()) {
        caches.copy_page(from, own).expect("a page");
        let bytes = caches.page_bytes(own).expect("a page");
        caches.write_page(own, &bytes).expect("a page");
    }
    let mut fork = [fork];
    step(model, &mut caches, &mut fork, &[4]);
    all.extend(bits(&fork[0].logits));
    all
}
