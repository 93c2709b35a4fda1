//! The engine's policy, on a model whose answers are easy to foretell.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use gruff_engine::speculation::PromptLookup;
use gruff_engine::{
    BeamParams, Context, Engine, EngineOptions, Event, FinishReason, Guidance, OutputOptions, Request,
    RequestId,
};
use gruff_kernels::{Activations, Device, PAGE_LEN, StateShape, Step, StepTokens, Tensor};
use gruff_models::{CachePlan, Caches, LayerCache, Model, ModelBase, ModelConfig, Names};

const VOCABULARY: usize = 50;

/// Answers with the sum of all tokens of the sequence modulo the vocabulary, and checks on the way that every
/// step continues what the caches hold: by slot for recurrent state, by page for keys and values.
struct Adder {
    base: ModelBase,
    /// What each slot has seen.
    slots: Mutex<HashMap<usize, Vec<u32>>>,
    /// What each page holds.
    pages: Mutex<HashMap<u32, Vec<u32>>>,
    /// Tokens and output rows of every step.
    steps: Mutex<Vec<(usize, usize)>>,
}

impl Adder {
    fn new(recurrent: bool) -> Arc<Self> {
        let kv = LayerCache::Kv { kv_heads: 1, key_dim: 8, value_dim: 8 };
        let state = LayerCache::State(StateShape {
            key_heads: 1,
            value_heads: 1,
            key_dim: 8,
            value_dim: 8,
            conv_kernel: 4,
            conv_channels: 24,
            rollback: 0,
        });
        let layers = if recurrent { vec![state, kv] } else { vec![kv] };
        let config = ModelConfig {
            architecture: "adder".into(),
            name: None,
            num_hidden_layers: layers.len(),
            hidden_size: 8,
            vocab_size: VOCABULARY,
            max_position_embeddings: 4096,
            num_parameters: 1,
            weight_bytes: 4,
            caches: CachePlan::new(layers),
        };
        let device = Device::reference(Activations::F32);
        let base = ModelBase::new(config, device, Names(&[]));
        Arc::new(Self { base, slots: Mutex::default(), pages: Mutex::default(), steps: Mutex::default() })
    }

    fn recall(&self, pages: &[u32], past: usize) -> Vec<u32> {
        let held = self.pages.lock().unwrap();
        pages.iter().flat_map(|page| held.get(page).cloned().unwrap_or_default()).take(past).collect()
    }
}

impl Model for Adder {
    fn base(&self) -> &ModelBase {
        &self.base
    }

    fn forward(&self, step: &Step, _caches: &mut Caches) -> gruff_models::Result<Tensor> {
        let StepTokens::Ids(ids) = step.tokens() else { panic!("ids are given") };
        self.steps.lock().unwrap().push((ids.len(), step.output_rows().len()));
        let mut logits = vec![0.0; step.output_rows().len() * VOCABULARY];
        for (sequence, bounds) in step.sequences().iter().zip(step.starts().windows(2)) {
            let mut tokens = self.recall(&sequence.pages, sequence.past);
            assert_eq!(tokens.len(), sequence.past, "the pages hold what came before");
            if self.config().caches.is_recurrent() && sequence.past > 0 {
                assert_eq!(self.slots.lock().unwrap()[&sequence.slot], tokens, "so does the slot");
            }
            tokens.extend(&ids[bounds[0]..bounds[1]]);
            for (page, content) in sequence.pages.iter().zip(tokens.chunks(PAGE_LEN)) {
                self.pages.lock().unwrap().insert(*page, content.to_vec());
            }
            if let Some(row) = step.output_rows().iter().position(|row| *row as usize == bounds[1] - 1) {
                let next = tokens.iter().sum::<u32>() as usize % VOCABULARY;
                logits[row * VOCABULARY + next] = 1.0;
            }
            self.slots.lock().unwrap().insert(sequence.slot, tokens);
        }
        Ok(self.device().tensor_f32(&logits, &[step.output_rows().len(), VOCABULARY])?)
    }
}

fn options(context: usize, max_sequences: usize) -> EngineOptions {
    EngineOptions { context: Context::Tokens(context), max_sequences, ..EngineOptions::default() }
}

fn request(prompt: &[u32], max_new_tokens: usize) -> Request {
    Request { max_new_tokens: Some(max_new_tokens), ..Request::new(prompt.to_vec()) }
}

/// What the model answers, worked out beside it.
fn expected(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        tokens.push(tokens.iter().sum::<u32>() % VOCABULARY as u32);
    }
    tokens.split_off(prompt.len())
}

#[derive(Default)]
struct Answers {
    tokens: HashMap<RequestId, Vec<u32>>,
    finished: HashMap<RequestId, (FinishReason, gruff_engine::Usage)>,
}

impl Answers {
    fn take(&mut self, event: &Event) {
        match event {
            Event::Token { request, id, .. } => self.tokens.entry(*request).or_default().push(*id),
            Event::Finished { request, reason, usage, .. } => {
                self.finished.insert(*request, (*reason, *usage));
            }
            Event::Failed { message, .. } => panic!("{message}"),
            Event::Prompt { .. } | Event::Beams { .. } => {}
        }
    }

    fn run(engine: &mut Engine) -> Self {
        let mut answers = Self::default();
        engine.run(|event| answers.take(event)).unwrap();
        answers
    }
}

#[test]
fn a_batch_of_unequal_prompts_is_answered_as_each_alone() {
    for recurrent in [false, true] {
        let mut engine = Engine::new(Adder::new(recurrent), options(512, 4)).unwrap();
        let prompts: Vec<Vec<u32>> = (1..12).map(|n| (0..n * 13).map(|i| i % 50).collect()).collect();
        let ids: Vec<_> = prompts.iter().map(|p| engine.submit(request(p, 40)).unwrap()).collect();
        let answers = Answers::run(&mut engine);
        for (prompt, id) in prompts.iter().zip(ids) {
            assert_eq!(answers.tokens[&id], expected(prompt, 40));
            assert_eq!(answers.finished[&id].0, FinishReason::MaxNewTokens);
        }
    }
}

#[test]
fn long_prompts_go_through_in_chunks_and_do_not_hold_up_answers() {
    let model = Adder::new(true);
    let mut engine =
        Engine::new(model.clone(), EngineOptions { step_tokens: 64, ..options(1024, 2) }).unwrap();
    let short = engine.submit(request(&[1, 2, 3], 30)).unwrap();
    let long: Vec<u32> = (0..500).map(|i| i % 50).collect();
    let long_id = engine.submit(request(&long, 5)).unwrap();
    let mut answers = Answers::default();
    for _ in 0..9 {
        engine.step().unwrap().iter().for_each(|event| answers.take(event));
    }
    assert_eq!(answers.tokens[&short].len(), 9, "one token a step, long prompt or not");
    engine.run(|event| answers.take(event)).unwrap();
    assert_eq!(answers.tokens[&long_id], expected(&long, 5));
    assert!(model.steps.lock().unwrap().iter().all(|(tokens, _)| *tokens <= 64));
}

#[test]
fn a_batch_costs_the_sum_of_its_lengths() {
    let model = Adder::new(true);
    let mut engine = Engine::new(model.clone(), options(512, 4)).unwrap();
    let prompts = [vec![1; 3], vec![2; 90], vec![3; 17], vec![4; 1]];
    for prompt in &prompts {
        engine.submit(request(prompt, 6)).unwrap();
    }
    Answers::run(&mut engine);
    let steps = model.steps.lock().unwrap();
    // All sequences go through the model together, so that each weight is read once a step: six for six tokens.
    assert_eq!(steps.len(), 6);
    let (tokens, rows) = steps.iter().fold((0, 0), |(t, r), (tokens, rows)| (t + tokens, r + rows));
    let lengths: usize = prompts.iter().map(Vec::len).sum();
    assert_eq!(tokens, lengths + 4 * 5, "each token once, and no padding");
    assert_eq!(rows, 4 * 6, "logits where a token is chosen, and nowhere else");
}

#[test]
fn parameters_that_exclude_each_other_are_refused() {
    let mut engine = Engine::new(Adder::new(true), options(64, 4)).unwrap();
    let beams = |num_beams| Some(BeamParams { num_beams, ..BeamParams::default() });
    let guidance = Some(Guidance { scale: 1.5, negative_prompt: vec![2] });
    let lookup = PromptLookup { num_tokens: 4, max_matching_ngram_size: 2 };
    let plain = || request(&[1, 2], 3);
    for (bad, name) in [
        (Request { beams: beams(0), ..plain() }, "num_beams"),
        (Request { beams: beams(5), ..plain() }, "num_beams: the request has 5 sequences"),
        (Request { beams: beams(2), num_return_sequences: 3, ..plain() }, "num_return_sequences"),
        (Request { num_return_sequences: 0, ..plain() }, "num_return_sequences"),
        (Request { beams: beams(3), guidance: guidance.clone(), ..plain() }, "num_beams: the request has 6"),
        (
            Request { num_return_sequences: 3, guidance: guidance.clone(), ..plain() },
            "num_return_sequences: the request has 6",
        ),
        (Request { speculation: Some(Arc::new(lookup)), ..plain() }, "rollback of 4 tokens"),
        (Request { beams: beams(2), speculation: Some(Arc::new(lookup)), ..plain() }, "speculation"),
    ] {
        let message = engine.submit(bad).unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
    assert!(engine.is_idle());
}

#[test]
fn the_next_turn_continues_the_last_one() {
    for recurrent in [false, true] {
        let mut engine = Engine::new(Adder::new(recurrent), options(512, 1)).unwrap();
        let first: Vec<u32> = (0..100).map(|i| i % 50).collect();
        let id = engine.submit(request(&first, 10)).unwrap();
        let answer = Answers::run(&mut engine).tokens.remove(&id).unwrap();
        let mut second = [first, answer].concat();
        second.extend([7, 8, 9]);
        let id = engine.submit(request(&second, 10)).unwrap();
        let answers = Answers::run(&mut engine);
        assert_eq!(answers.tokens[&id], expected(&second, 10));
        assert_eq!(
            answers.finished[&id].1.cached_tokens, 109,
            "all but the last token, which was not computed"
        );
    }
}

#[test]
fn a_changed_history_is_reused_as_far_as_the_caches_allow() {
    for (recurrent, cached) in [(false, 60), (true, 0)] {
        let mut engine = Engine::new(Adder::new(recurrent), options(512, 1)).unwrap();
        let first: Vec<u32> = (0..100).map(|i| i % 50).collect();
        engine.submit(request(&first, 10)).unwrap();
        Answers::run(&mut engine);
        let mut second = first[..60].to_vec();
        second.extend([49, 49, 49]);
        let id = engine.submit(request(&second, 10)).unwrap();
        let answers = Answers::run(&mut engine);
        assert_eq!(answers.tokens[&id], expected(&second, 10));
        assert_eq!(answers.finished[&id].1.cached_tokens, cached);
    }
}

#[test]
fn end_tokens_and_the_context_end_an_answer() {
    let mut engine = Engine::new(Adder::new(false), options(64, 2)).unwrap();
    let end = expected(&[3, 4], 5)[4];
    let ended = engine.submit(Request { end_tokens: vec![end], ..Request::new(vec![3, 4]) }).unwrap();
    let full = engine.submit(Request::new(vec![5; 60])).unwrap();
    let answers = Answers::run(&mut engine);
    assert_eq!(answers.finished[&ended].0, FinishReason::EndToken);
    assert_eq!(answers.tokens[&ended].last(), Some(&end));
    assert_eq!(answers.finished[&full].0, FinishReason::Context);
    assert_eq!(answers.tokens[&full].len(), 4);
}

#[test]
fn cancelling_frees_a_place_for_those_who_wait() {
    let mut engine = Engine::new(Adder::new(true), options(512, 1)).unwrap();
    let first = engine.submit(request(&[1], 400)).unwrap();
    let second = engine.submit(request(&[2, 3], 3)).unwrap();
    let third = engine.submit(request(&[4], 3)).unwrap();
    engine.step().unwrap();
    assert!(matches!(engine.cancel(first), Some(Event::Finished { reason: FinishReason::Cancelled, .. })));
    assert!(engine.cancel(third).is_some(), "one that waits can be cancelled too");
    assert!(engine.cancel(first).is_none());
    let answers = Answers::run(&mut engine);
    assert_eq!(answers.tokens[&second], expected(&[2, 3], 3));
    assert!(!answers.tokens.contains_key(&third));
}

#[test]
fn sequences_that_outgrow_the_caches_take_turns_and_answer_the_same() {
    for recurrent in [false, true] {
        let options = EngineOptions { cache_tokens: Some(256), ..options(256, 4) };
        let mut engine = Engine::new(Adder::new(recurrent), options).unwrap();
        let prompts: Vec<Vec<u32>> = (0..6).map(|n| vec![n + 1; 60 + n as usize]).collect();
        let ids: Vec<_> = prompts.iter().map(|p| engine.submit(request(p, 120)).unwrap()).collect();
        let answers = Answers::run(&mut engine);
        for (prompt, id) in prompts.iter().zip(ids) {
            assert_eq!(answers.tokens[&id], expected(prompt, 120));
        }
    }
}

#[test]
fn requests_that_cannot_be_served_say_why_and_harm_nobody() {
    let mut engine = Engine::new(Adder::new(false), options(64, 1)).unwrap();
    let good = engine.submit(request(&[1, 2], 3)).unwrap();
    let mut hot = request(&[1], 1);
    hot.sampling.temperature = -1.0;
    for (bad, name) in [
        (Request::new(vec![]), "prompt"),
        (Request::new(vec![50]), "vocabulary of 50"),
        (Request::new(vec![1; 64]), "context of 64"),
        (request(&[1], 0), "max_new_tokens"),
        (hot, "temperature"),
    ] {
        let message = engine.submit(bad).unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
    assert_eq!(Answers::run(&mut engine).tokens[&good], expected(&[1, 2], 3));
}

#[test]
fn memory_is_planned_before_it_is_taken() {
    let refused = |options: EngineOptions| match Engine::new(Adder::new(true), options) {
        Ok(_) => panic!("it should not fit"),
        Err(error) => error.to_string(),
    };
    let message = refused(EngineOptions { memory: Some(1 << 20), ..options(4096, 8) });
    assert!(message.contains("not enough memory: weights") && message.contains("--ctx"), "{message}");
    // What may be used may be used up.
    let with = |memory| EngineOptions { memory: Some(memory), ..options(4096, 8) };
    let total = Engine::new(Adder::new(true), with(1 << 40)).unwrap().memory().total();
    assert!(Engine::new(Adder::new(true), with(total)).is_ok());
    assert!(refused(with(total - 1)).contains("not enough memory"));
    assert!(refused(options(5000, 1)).contains("trained for"));
    assert!(refused(options(0, 1)).contains("ctx"));
    let narrow = EngineOptions { cache_tokens: Some(100), ..options(512, 2) };
    assert!(refused(narrow).contains("cache_tokens"));
    assert!(refused(options(64, 0)).contains("max_sequences"));
    let auto = EngineOptions { context: Context::Auto, memory: Some(300 << 20), ..EngineOptions::default() };
    let engine = Engine::new(Adder::new(true), auto).unwrap();
    assert_eq!(engine.memory().context, 4096);
}

#[test]
fn only_who_asks_looks_inside_the_model() {
    // The model gives logits only: it fails whoever asks for more, and would fail others if they asked too.
    let mut engine = Engine::new(Adder::new(true), options(64, 3)).unwrap();
    let outputs = OutputOptions { hidden_states: true, ..OutputOptions::default() };
    let asks = engine.submit(Request { outputs, ..request(&[1, 2], 4) }).unwrap();
    let others = [[1, 2], [3, 4]].map(|prompt| (prompt, engine.submit(request(&prompt, 4)).unwrap()));
    let (mut failed, mut tokens) = (Vec::new(), HashMap::<_, Vec<u32>>::new());
    let run = engine.run(|event| match event {
        Event::Failed { request, message } => failed.push((*request, message.clone())),
        Event::Token { request, id, details, .. } => {
            assert_eq!(*details, None, "nobody asked");
            tokens.entry(*request).or_default().push(*id);
        }
        _ => {}
    });
    run.unwrap();
    assert!(failed.len() == 1 && failed[0].0 == asks && failed[0].1.contains("adder"), "{failed:?}");
    for (prompt, id) in others {
        assert_eq!(tokens[&id], expected(&prompt, 4));
    }
}
