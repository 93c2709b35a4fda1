//! A model whose answers are easy to foretell, on the caches that real ones use.

// Each test file uses some of it.
#![allow(dead_code)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gruff_engine::{Context, Engine, EngineOptions, Event, FinishReason, Request, RequestId, Usage};
use gruff_kernels::{Activations, CHUNK, Device, PAGE_LEN, StateLayer, StateShape, Step, StepTokens, Tensor};
use gruff_models::{CachePlan, Caches, LayerCache, Model, ModelBase, ModelConfig, Names};

pub(crate) const VOCABULARY: usize = 50;
const WIDTH: usize = 8;
const TAPS: usize = 4;

/// Answers with the sum of all tokens of the sequence modulo the vocabulary, plus a bias, and checks on the way that
/// every step continues what the caches hold. Keys are token ids; recurrent state is what the contract of
/// [`StateLayer`] says, with a checksum of the tokens for S and token ids for the rows since.
pub(crate) struct Adder {
    base: ModelBase,
    /// Tokens and output rows of every step.
    pub(crate) steps: Mutex<Vec<(usize, usize)>>,
    /// Added to every answer's token.
    pub(crate) bias: Mutex<u32>,
    /// Ids that came from the device.
    pub(crate) late: AtomicUsize,
    /// Steps fail as long as it is set.
    pub(crate) fails: AtomicBool,
}

impl Adder {
    pub(crate) fn new(recurrent: bool) -> Arc<Self> {
        let kv = LayerCache::Kv { kv_heads: 1, key_dim: WIDTH, value_dim: WIDTH };
        let state = LayerCache::State(StateShape {
            key_heads: 1,
            value_heads: 1,
            key_dim: WIDTH,
            value_dim: WIDTH,
            conv_kernel: TAPS,
            conv_channels: WIDTH,
            rollback: 0,
        });
        let layers = if recurrent { vec![state, kv] } else { vec![kv] };
        let config = ModelConfig {
            architecture: "adder".into(),
            name: None,
            num_hidden_layers: layers.len(),
            hidden_size: WIDTH,
            vocab_size: VOCABULARY,
            max_position_embeddings: 4096,
            num_parameters: 1,
            weight_bytes: 4,
            caches: CachePlan::new(layers),
        };
        let device = Device::reference(Activations::F32);
        let base = ModelBase::new(config, device, Names(&[]));
        Arc::new(Self {
            base,
            steps: Mutex::default(),
            bias: Mutex::default(),
            late: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
        })
    }

    /// Tokens that went through the model.
    pub(crate) fn computed(&self) -> usize {
        self.steps.lock().unwrap().iter().map(|(tokens, _)| tokens).sum()
    }
}

/// A checksum that single precision holds exactly.
fn checksum(tokens: &[u32]) -> f32 {
    tokens.iter().fold(0u32, |sum, token| (sum * 31 + token + 1) % 1_000_003) as f32
}

fn read(pool: &Tensor, path: &[usize]) -> f32 {
    at(pool, path).to_vec_f32().unwrap()[0]
}

fn write(pool: &Tensor, path: &[usize], value: f32) {
    let view = at(pool, path);
    view.write_f32(&vec![value; view.len()]).unwrap();
}

/// The entry under these indices of the outer dimensions.
fn at(pool: &Tensor, path: &[usize]) -> Tensor {
    path.iter().enumerate().fold(pool.clone(), |view, (axis, index)| view.narrow(axis, *index, 1).unwrap())
}

/// The places of a position in the rings of a slot.
fn rows(state: &StateLayer, slot: usize, position: usize) -> [(&Tensor, Vec<usize>); 3] {
    let row = position % state.shape().rows();
    [
        (state.keys(), vec![slot, 0, row]),
        (state.updates(), vec![slot, 0, row]),
        (state.decays(), vec![slot, 0, row]),
    ]
}

fn matrix(state: &StateLayer, slot: usize, chunk: usize) -> Vec<usize> {
    let matrices = state.shape().matrices();
    vec![slot * matrices + chunk % matrices]
}

fn conv(state: &StateLayer, slot: usize, position: usize) -> Vec<usize> {
    vec![slot, position % state.shape().conv_rows()]
}

/// Checks that a slot holds what it should behind `tokens`.
fn check_state(state: &StateLayer, slot: usize, tokens: &[u32]) {
    let (len, chunk) = (tokens.len(), tokens.len() / CHUNK);
    if chunk > 0 {
        let sum = read(state.matrix(), &matrix(state, slot, chunk));
        assert_eq!(sum, checksum(&tokens[..chunk * CHUNK]), "S behind {len} tokens");
    }
    for (position, token) in tokens.iter().enumerate().skip(chunk * CHUNK) {
        for (pool, place) in rows(state, slot, position) {
            assert_eq!(read(pool, &place), *token as f32, "the rows of {position} behind {len}");
        }
    }
    for (position, token) in tokens.iter().enumerate().skip(len.saturating_sub(TAPS - 1)) {
        let input = read(state.conv(), &conv(state, slot, position));
        assert_eq!(input, *token as f32, "the input of {position} behind {len}");
    }
}

/// Extends a slot by the tokens from `past` on.
fn extend_state(state: &StateLayer, slot: usize, tokens: &[u32], past: usize) {
    for (position, token) in tokens.iter().enumerate().skip(past) {
        for (pool, place) in rows(state, slot, position) {
            write(pool, &place, *token as f32);
        }
        write(state.conv(), &conv(state, slot, position), *token as f32);
        if (position + 1).is_multiple_of(CHUNK) {
            let chunk = (position + 1) / CHUNK;
            write(state.matrix(), &matrix(state, slot, chunk), checksum(&tokens[..position + 1]));
        }
    }
}

impl Model for Adder {
    fn base(&self) -> &ModelBase {
        &self.base
    }

    fn takes_late_ids(&self) -> bool {
        true
    }

    fn forward(&self, step: &Step, caches: &mut Caches) -> gruff_models::Result<Tensor> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(gruff_kernels::Error::Option { what: "it fails as asked for".into() }.into());
        }
        let StepTokens::Ids(ids) = step.tokens() else { panic!("ids are given") };
        let mut ids = ids.clone();
        if let Some(late) = step.late() {
            self.late.fetch_add(late.rows().len(), Ordering::Relaxed);
            let chosen = late.ids().to_vec_i32()?;
            late.rows().iter().for_each(|(token, row)| ids[*token] = chosen[*row as usize].max(0) as u32);
        }
        self.steps.lock().unwrap().push((ids.len(), step.output_rows().len()));
        let recurrent = self.config().caches.is_recurrent();
        let bias = *self.bias.lock().unwrap();
        let kv = caches.kv(usize::from(recurrent))?;
        let mut logits = vec![0.0; step.output_rows().len() * VOCABULARY];
        for (sequence, bounds) in step.sequences().iter().zip(step.starts().windows(2)) {
            let place =
                |position: usize| vec![sequence.pages[position / PAGE_LEN] as usize, 0, position % PAGE_LEN];
            let mut tokens: Vec<u32> =
                (0..sequence.past).map(|position| read(kv.keys(), &place(position)) as u32).collect();
            let new = &ids[bounds[0]..bounds[1]];
            tokens.extend(new);
            for (position, token) in tokens.iter().enumerate().skip(sequence.past) {
                write(kv.keys(), &place(position), *token as f32);
            }
            if recurrent {
                check_state(caches.state(0)?, sequence.slot, &tokens[..sequence.past]);
                extend_state(caches.state(0)?, sequence.slot, &tokens, sequence.past);
            }
            for (index, row) in step.output_rows().iter().enumerate() {
                if (bounds[0]..bounds[1]).contains(&(*row as usize)) {
                    let known = sequence.past + *row as usize - bounds[0] + 1;
                    let next = (tokens[..known].iter().sum::<u32>() + bias) as usize % VOCABULARY;
                    logits[index * VOCABULARY + next] = 1.0;
                }
            }
        }
        Ok(self.device().tensor_f32(&logits, &[step.output_rows().len(), VOCABULARY])?)
    }
}

pub(crate) fn options(context: usize, max_sequences: usize) -> EngineOptions {
    EngineOptions { context: Context::Tokens(context), max_sequences, ..EngineOptions::default() }
}

pub(crate) fn request(prompt: &[u32], max_new_tokens: usize) -> Request {
    Request { max_new_tokens: Some(max_new_tokens), ..Request::new(prompt.to_vec()) }
}

/// What the model answers, worked out beside it.
pub(crate) fn expected(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        tokens.push(tokens.iter().sum::<u32>() % VOCABULARY as u32);
    }
    tokens.split_off(prompt.len())
}

#[derive(Default)]
pub(crate) struct Answers {
    pub(crate) tokens: HashMap<RequestId, Vec<u32>>,
    pub(crate) finished: HashMap<RequestId, (FinishReason, Usage)>,
    /// In which they finished.
    pub(crate) order: Vec<RequestId>,
}

impl Answers {
    pub(crate) fn take(&mut self, event: &Event) {
        match event {
            Event::Token { request, id, .. } => self.tokens.entry(*request).or_default().push(*id),
            Event::Finished { request, reason, usage, .. } => {
                self.finished.insert(*request, (*reason, *usage));
                self.order.push(*request);
            }
            Event::Failed { message, .. } => panic!("{message}"),
            Event::Prompt { .. } | Event::PromptDetails { .. } | Event::Beams { .. } => {}
        }
    }

    /// Runs until all is answered, and checks after every step who owns what.
    pub(crate) fn run(engine: &mut Engine) -> Self {
        let mut answers = Self::default();
        answers.go_on(engine);
        answers
    }

    pub(crate) fn go_on(&mut self, engine: &mut Engine) {
        while !engine.is_idle() {
            self.step(engine);
        }
    }

    pub(crate) fn step(&mut self, engine: &mut Engine) {
        engine.step().unwrap().iter().for_each(|event| self.take(event));
        engine.audit().unwrap();
    }
}
