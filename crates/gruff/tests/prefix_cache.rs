//! What the prefix cache saves on the bundled hybrid model, and that nobody can tell from the bits.

use std::collections::HashMap;

use gruff::floors::engine::{
    Context, Engine, EngineOptions, Event, OutputOptions, PrefixCacheFolder, Request,
};
use gruff::{AutoModelForCausalLM, AutoTokenizer, ChatOptions, GenerationConfig, Message, Pretrained};
use proptest::prelude::*;

const DENSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-9m-Q4_K_M.gguf");

fn model() -> AutoModelForCausalLM {
    AutoModelForCausalLM::from_pretrained(DENSE).load().unwrap()
}

fn tokenizer() -> AutoTokenizer {
    Pretrained::<AutoTokenizer>::new(DENSE).load().unwrap()
}

/// A long text without a pattern.
fn text(words: usize, seed: usize) -> String {
    let all = ["river", "stone", "small", "green", "walks", "under", "light", "seven", "never", "house"];
    let word = |index: usize| all[(index * index + 7 * index + seed * 3 + index / 11) % all.len()];
    (0..words).map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn messages_begin_where_the_template_says_so() {
    let tokenizer = tokenizer();
    let messages = [Message::system("Be brief."), Message::user("Hello."), Message::assistant("Hi.")];
    let ids = tokenizer
        .apply_chat_template(&[&messages[..], &[Message::user("And now?")]].concat(), &ChatOptions::prompt())
        .unwrap();
    let start = tokenizer.tokenizer().token_to_id("<|im_start|>").unwrap();
    let expected: Vec<usize> = (0..ids.len()).filter(|at| ids[*at] == start).collect();
    assert_eq!(expected.len(), 5, "four messages, and the answer");
    assert_eq!(tokenizer.tokenizer().message_borders(&ids), expected);
}

#[test]
fn the_next_turn_without_the_last_ones_thinking_reads_only_what_changed() {
    let (model, tokenizer) = (model(), tokenizer());
    let config = GenerationConfig {
        max_new_tokens: Some(60),
        temperature: Some(0.0),
        eos_token_id: Some(Vec::new()),
        ..GenerationConfig::default()
    };
    let mut messages = vec![Message::system(text(400, 1)), Message::user(text(60, 2))];
    let first = tokenizer.apply_chat_template(&messages, &ChatOptions::prompt()).unwrap();
    let borders = tokenizer.tokenizer().message_borders(&first);
    let answered = model.generate(first.clone(), &config).unwrap();
    assert_eq!(answered.usage[0].cached_tokens, 0);

    // The answer goes into the history with its reasoning, which the template leaves out of earlier turns.
    messages.push(Message::assistant("The river is green.").with_reasoning(text(50, 3)));
    messages.push(Message::user("Why?"));
    let second = tokenizer.apply_chat_template(&messages, &ChatOptions::prompt()).unwrap();
    let common = first.iter().zip(&second).take_while(|(a, b)| a == b).count();
    assert!(common < first.len(), "the turns part where the reasoning was");
    let turn = model.generate(second.clone(), &config).unwrap();
    let last_border = *borders.last().unwrap();
    assert_eq!(turn.usage[0].cached_tokens, last_border);
    assert!(common - last_border < 8, "what is read anew is the head of a message: {common}, {last_border}");

    // Another conversation under the same instructions.
    let other = [messages[0].clone(), Message::user(text(90, 4))];
    let other = tokenizer.apply_chat_template(&other, &ChatOptions::prompt()).unwrap();
    let turn_of_another = model.generate(other.clone(), &config).unwrap();
    assert_eq!(turn_of_another.usage[0].cached_tokens, borders[1]);

    // All of it is as if nothing had been kept.
    model.clear_caches();
    let anew = model.generate(second, &config).unwrap();
    assert_eq!((&turn.sequences, anew.usage[0].cached_tokens), (&anew.sequences, 0));
    model.clear_caches();
    assert_eq!(turn_of_another.sequences, model.generate(other, &config).unwrap().sequences);
}

/// A token with the model's logits behind it, bit by bit.
type Told = Vec<(u32, Vec<u32>)>;

fn take(event: Event, told: &mut HashMap<u64, Told>) {
    match event {
        Event::Token { request, id, details, .. } => {
            let logits = details.and_then(|details| details.logits).unwrap_or_default();
            let bits = logits.iter().map(|logit| logit.to_bits()).collect();
            told.entry(request.0).or_default().push((id, bits));
        }
        Event::Failed { message, .. } => panic!("{message}"),
        _ => {}
    }
}

/// A prompt of pieces that others have too.
fn prompt(pieces: &[(u32, usize)]) -> Vec<u32> {
    let piece = |(seed, len): &(u32, usize)| {
        let seed = *seed;
        (0..*len as u32).map(move |index| 30 + (index * index * 7 + index * 3 + seed * 501) % 900)
    };
    pieces.iter().flat_map(piece).collect()
}

fn asked(pieces: &[(u32, usize)]) -> Request {
    let lengths = pieces.iter().scan(0, |sum, (_, len)| {
        *sum += len;
        Some(*sum)
    });
    let outputs = OutputOptions { logits: true, ..OutputOptions::default() };
    Request { max_new_tokens: Some(6), borders: lengths.collect(), outputs, ..Request::new(prompt(pieces)) }
}

fn pieces() -> impl Strategy<Value = Vec<(u32, usize)>> {
    prop::collection::vec((0u32..2, prop::sample::select(vec![9usize, 32, 65, 140])), 1..4)
}

#[test]
fn what_a_restart_finds_in_files_has_the_same_bits() {
    let (model, folder) = (model(), tempfile::tempdir().unwrap());
    let engine = || {
        let folder = PrefixCacheFolder { path: folder.path().to_owned(), bytes: 1 << 30 };
        let options = EngineOptions {
            context: Context::Tokens(1024),
            prefix_cache_folder: Some(folder),
            ..EngineOptions::default()
        };
        Engine::new(model.model().clone(), options).unwrap()
    };
    let run = |mut engine: Engine| {
        let id = engine.submit(asked(&[(0, 140), (1, 140), (0, 65)])).unwrap();
        let (mut told, mut cached) = (HashMap::new(), 0);
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let Event::Finished { usage, .. } = &event {
                    cached = usage.cached_tokens;
                }
                take(event, &mut told);
            }
        }
        (told.remove(&id.0).unwrap(), cached)
    };
    let (anew, none) = run(engine());
    let (again, found) = run(engine());
    assert_eq!((none, found), (0, 280), "up to the last border");
    assert!(anew == again);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// Requests that begin alike, some cancelled, in a cache that has room for few of them: ids and logits are those of
    /// an engine that has seen nothing else.
    #[test]
    fn ids_and_logits_are_those_of_a_fresh_engine(
        prompts in prop::collection::vec((pieces(), 0usize..6, any::<bool>()), 2..8),
        cache_tokens in prop::sample::select(vec![512usize, 2048]),
        prefix_cache in prop::sample::select(vec![None, Some(8 << 20)]),
    ) {
        let model = AutoModelForCausalLM::from_pretrained(DENSE).load().unwrap();
        let with = |cache_tokens, prefix_cache| {
            let options = EngineOptions {
                context: Context::Tokens(512),
                max_sequences: 3,
                step_tokens: Some(128),
                cache_tokens,
                prefix_cache,
                ..EngineOptions::default()
            };
            Engine::new(model.model().clone(), options).unwrap()
        };
        let mut engine = with(Some(cache_tokens), prefix_cache);
        let (mut told, mut ids) = (HashMap::new(), Vec::new());
        for (pieces, steps, cancel) in &prompts {
            let id = engine.submit(asked(pieces)).unwrap();
            for _ in 0..*steps {
                engine.step().unwrap().into_iter().for_each(|event| take(event, &mut told));
                engine.audit().unwrap();
            }
            if *cancel && prompts.len() > 3 {
                engine.cancel(id);
            } else {
                ids.push((id.0, pieces));
            }
        }
        while !engine.is_idle() {
            engine.step().unwrap().into_iter().for_each(|event| take(event, &mut told));
            engine.audit().unwrap();
        }
        let mut alone = with(None, Some(0));
        for (id, pieces) in ids {
            let own = alone.submit(asked(pieces)).unwrap();
            let mut expected = HashMap::new();
            while !alone.is_idle() {
                alone.step().unwrap().into_iter().for_each(|event| take(event, &mut expected));
            }
            prop_assert!(told[&id] == expected[&own.0], "request {} of {:?}", id, pieces);
        }
    }
}
