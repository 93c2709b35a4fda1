//! What later requests save because of earlier ones, on a model whose answers are easy to foretell.

mod adder;

use std::sync::Arc;

use adder::{Adder, Answers, expected, options, request};
use gruff_engine::speculation::PromptLookup;
use gruff_engine::{BeamParams, Engine, EngineOptions, FinishReason, Request, RequestId};
use gruff_kernels::PAGE_LEN;
use gruff_models::Model;
use proptest::prelude::*;

/// Tokens that follow no pattern, different for each seed.
fn text(seed: u32, len: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 16
    };
    (0..len).map(next).map(|number| number % adder::VOCABULARY as u32).collect()
}

fn answer(engine: &mut Engine, request: Request) -> (Vec<u32>, usize) {
    let id = engine.submit(request).unwrap();
    let mut answers = Answers::run(engine);
    (answers.tokens.remove(&id).unwrap(), answers.finished[&id].1.cached_tokens)
}

#[test]
fn an_agents_turn_without_its_last_ones_thinking_reads_only_what_changed() {
    let model = Adder::new(true);
    let mut engine = Engine::new(model.clone(), options(4096, 1)).unwrap();
    // Instructions, a question, then the answer begins; a border before each.
    let mut history = text(1, 700);
    history.extend(text(2, 150));
    let border = history.len();
    history.extend([1, 2, 3]);
    let borders = vec![0, 700, border];
    let (thinking, _) = answer(&mut engine, Request { borders, ..request(&history, 300) });
    assert_eq!(model.computed(), history.len() + 299);

    // What was thought is left out: the turns part behind the border.
    let before = model.computed();
    let mut next = history[..border].to_vec();
    next.extend(&thinking[200..]);
    next.extend(text(3, 40));
    let (_, cached) = answer(&mut engine, Request { borders: vec![0, 700, border], ..request(&next, 1) });
    assert_eq!(cached, border);
    assert_eq!(model.computed() - before, next.len() - border);

    // Another question under the same instructions.
    let other = [&history[..700], &text(4, 90)].concat();
    assert_eq!(answer(&mut engine, request(&other, 1)).1, 700);

    // With the thinking, the turn begins where the answer ended.
    let whole = [&history[..], &thinking, &text(5, 9)].concat();
    assert_eq!(answer(&mut engine, request(&whole, 1)).1, history.len() + 299);
}

#[test]
fn a_prompt_without_borders_is_kept_near_its_end_and_at_equal_spaces() {
    let model = Adder::new(true);
    let mut engine = Engine::new(model.clone(), options(4096, 1)).unwrap();
    let prompt = text(1, 3500);
    answer(&mut engine, request(&prompt, 1));
    assert_eq!(answer(&mut engine, request(&prompt, 1)).1, 3456, "the last chunk's border");
    // A state of this model takes less than the keys and values of 1024 tokens, so that least space is taken.
    assert_eq!(answer(&mut engine, request(&[&prompt[..2400], &[1, 2, 3]].concat(), 1)).1, 2048);
}

#[test]
fn what_is_in_progress_is_shared() {
    for recurrent in [false, true] {
        let model = Adder::new(recurrent);
        let mut engine = Engine::new(model.clone(), options(2048, 4)).unwrap();
        let system = text(1, 1024);
        let first = [&system[..], &text(2, 40)].concat();
        let borders = vec![1024];
        let one = engine.submit(Request { borders: borders.clone(), ..request(&first, 200) }).unwrap();
        let mut answers = Answers::default();
        for _ in 0..12 {
            answers.step(&mut engine);
        }
        assert!(!answers.tokens[&one].is_empty() && answers.finished.is_empty(), "it is being answered");
        let free = engine.stats().free_pages;
        let second = [&system[..], &text(3, 40)].concat();
        let two = engine.submit(Request { borders, ..request(&second, 50) }).unwrap();
        answers.step(&mut engine);
        assert!(free - engine.stats().free_pages <= 3, "the pages of what they share are the same");
        answers.go_on(&mut engine);
        assert_eq!(answers.finished[&two].1.cached_tokens, 1024);
        assert_eq!(answers.tokens[&one], expected(&first, 200));
        assert_eq!(answers.tokens[&two], expected(&second, 50));
    }
}

#[test]
fn requests_that_come_together_compute_what_they_share_once() {
    for recurrent in [false, true] {
        let model = Adder::new(recurrent);
        let mut engine = Engine::new(model.clone(), options(2048, 8)).unwrap();
        let system = text(1, 1024);
        let prompts: Vec<Vec<u32>> = (2..8).map(|seed| [&system[..], &text(seed, 40)].concat()).collect();
        let ask = |prompt: &Vec<u32>| Request { borders: vec![1024], ..request(prompt, 10) };
        let mut ids: Vec<_> = prompts.iter().map(|prompt| engine.submit(ask(prompt)).unwrap()).collect();
        // One that has nothing to do with them does not wait for them.
        let other = engine.submit(request(&[1, 2, 3], 10)).unwrap();
        let mut answers = Answers::default();
        answers.step(&mut engine);
        answers.step(&mut engine);
        assert!(answers.tokens.contains_key(&other));
        answers.go_on(&mut engine);
        for (prompt, id) in prompts.iter().zip(&ids) {
            assert_eq!(answers.tokens[id], expected(prompt, 10));
        }
        let least = 1024 + 6 * (40 + 9) + 3 + 9;
        // Without recurrent state there is something to go on from in every step, and the last bit is not waited for.
        let more = if recurrent { 0 } else { 5 * 128 };
        assert!((least..=least + more).contains(&model.computed()), "{} of {least}", model.computed());
        // Nor do those wait for ever whose example is given up.
        ids = prompts.iter().map(|prompt| engine.submit(request(&prompt[500..], 10)).unwrap()).collect();
        engine.step().unwrap();
        engine.cancel(ids[0]);
        let answers = Answers::run(&mut engine);
        assert!(ids[1..].iter().all(|id| answers.tokens[id].len() == 10));
    }
}

#[test]
fn several_answers_compute_their_prompt_once_and_leave_it_for_others() {
    for recurrent in [false, true] {
        let model = Adder::new(recurrent);
        let mut engine = Engine::new(model.clone(), options(1024, 4)).unwrap();
        let prompt = text(1, 500);
        let several = Request { num_return_sequences: 4, ..request(&prompt, 5) };
        let id = engine.submit(several).unwrap();
        let answers = Answers::run(&mut engine);
        assert_eq!(answers.tokens[&id].len(), 20);
        assert_eq!(model.computed(), 500 + 4 * 4);
        let cached = answer(&mut engine, request(&prompt, 5)).1;
        assert_eq!(cached, if recurrent { 448 } else { 499 });
        let beams = Some(BeamParams { num_beams: 3, ..BeamParams::default() });
        engine.submit(Request { beams, ..request(&prompt, 5) }).unwrap();
        Answers::run(&mut engine);
        assert_eq!(engine.stats().running, 0);
    }
}

#[test]
fn another_model_begins_anew() {
    for recurrent in [false, true] {
        let model = Adder::new(recurrent);
        let mut engine = Engine::new(model.clone(), options(1024, 2)).unwrap();
        let prompt = text(1, 400);
        answer(&mut engine, request(&prompt, 3));
        assert!(engine.stats().prefix_cache.pages > 0);
        // What runs while the model changes is not kept either.
        engine.submit(request(&text(2, 400), 30)).unwrap();
        engine.step().unwrap();
        let before = model.revision();
        model.set_attn_implementation(gruff_models::AttnImplementation::Flash);
        model.set_attn_implementation(gruff_models::AttnImplementation::Auto);
        assert!(model.revision() > before, "it has been another one, though it is the same again");
        Answers::run(&mut engine);
        assert_eq!(engine.stats().prefix_cache.pages, 0);
        assert_eq!(answer(&mut engine, request(&prompt, 3)).1, 0);
    }
}

#[test]
fn nothing_is_kept_where_nothing_is_to_be() {
    for recurrent in [false, true] {
        let options = EngineOptions { prefix_cache: Some(0), ..options(1024, 2) };
        let mut engine = Engine::new(Adder::new(recurrent), options).unwrap();
        let prompt = text(1, 400);
        answer(&mut engine, request(&prompt, 3));
        assert_eq!(answer(&mut engine, request(&prompt, 3)), (expected(&prompt, 3), 0));
        assert_eq!(engine.stats().free_pages, engine.stats().pages);
    }
}

#[test]
fn room_for_more_conversations_can_be_bought() {
    for recurrent in [false, true] {
        let model = Adder::new(recurrent);
        let asked = |prefix_cache| EngineOptions { prefix_cache, ..options(512, 1) };
        let small = Engine::new(model.clone(), asked(None)).unwrap();
        let mut engine = Engine::new(model.clone(), asked(Some(1 << 20))).unwrap();
        assert_eq!(engine.memory().prefix_cache, 1 << 20);
        assert_eq!(engine.memory().total() - small.memory().total(), (1 << 20) - small.memory().prefix_cache);
        let prompts: Vec<Vec<u32>> = (0..20).map(|seed| text(seed, 400)).collect();
        for prompt in &prompts {
            answer(&mut engine, request(prompt, 3));
        }
        for prompt in &prompts {
            let (tokens, cached) = answer(&mut engine, request(prompt, 3));
            assert_eq!((tokens, cached), (expected(prompt, 3), if recurrent { 384 } else { 399 }));
        }
        let stats = engine.stats().prefix_cache;
        assert_eq!((stats.lookups, stats.hits), (40, 20));
        assert_eq!(stats.evicted_pages + stats.evicted_snapshots, 0);
    }
    let little = EngineOptions { prefix_cache: Some(1000), ..options(512, 1) };
    let message = Engine::new(Adder::new(true), little).map(drop).unwrap_err().to_string();
    assert!(message.contains("prefix_cache") && message.contains("does not hold one state"), "{message}");
}

#[test]
fn what_is_kept_never_costs_a_request_its_last_page() {
    for recurrent in [false, true] {
        // All pages of the pool are one sequence's, and the tree shares the one that is written to.
        let mut engine = Engine::new(Adder::new(recurrent), options(4096, 1)).unwrap();
        let prompt = text(1, 4080);
        assert_eq!(answer(&mut engine, request(&prompt, 5)), (expected(&prompt, 5), 0));
        let (tokens, cached) = answer(&mut engine, request(&prompt, 5));
        assert_eq!((tokens, cached), (expected(&prompt, 5), if recurrent { 4032 } else { 4079 }));

        let mut engine = Engine::new(Adder::new(recurrent), options(4096, 1)).unwrap();
        let prompt = text(2, 4090);
        let borders = Request { borders: vec![4085], ..request(&prompt, 5) };
        assert_eq!(answer(&mut engine, borders), (expected(&prompt, 5), 0));
        assert_eq!(engine.stats().preemptions, 0);
    }
}

/// Tokens that a request of a random run drafts at most.
const DRAFTS: usize = 6;

/// What a random run does next.
#[derive(Clone, Debug)]
enum Action {
    /// A request: the pieces of its prompt, tokens wanted, answers, whether it drafts.
    Submit {
        pieces: Vec<(u32, usize)>,
        new: usize,
        answers: usize,
        drafts: bool,
        borders: bool,
    },
    Steps(usize),
    /// The request that is so many from the oldest.
    Cancel(usize),
}

fn action() -> impl Strategy<Value = Action> {
    let piece = (0u32..3, prop::sample::select(vec![3usize, 31, 32, 64, 100, 130]));
    let submit = (prop::collection::vec(piece, 1..4), 1usize..40, 1usize..3, any::<bool>(), any::<bool>());
    prop_oneof![
        3 => submit.prop_map(|(pieces, new, answers, drafts, borders)| {
            Action::Submit { pieces, new, answers, drafts, borders }
        }),
        3 => (1usize..30).prop_map(Action::Steps),
        1 => (0usize..4).prop_map(Action::Cancel),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever is shared, given up, preempted, forked or cancelled: every answer is what it is alone, and every page
    /// is owned by those who hold it. The model itself checks that the caches hold what the tokens say.
    #[test]
    fn answers_depend_on_their_prompt_alone(
        actions in prop::collection::vec(action(), 1..25),
        recurrent in any::<bool>(),
        cache_tokens in prop::sample::select(vec![448usize, 640, 1024, 4096]),
        prefix_cache in prop::sample::select(vec![None, Some(0), Some(20_000), Some(1 << 20)]),
        step_tokens in prop::sample::select(vec![16usize, 100, 512]),
    ) {
        let options = EngineOptions {
            cache_tokens: Some(cache_tokens),
            prefix_cache,
            step_tokens: Some(step_tokens),
            rollback: 8,
            ..options(448, 3)
        };
        let mut engine = Engine::new(Adder::new(recurrent), options).unwrap();
        let mut answers = Answers::default();
        let mut asked: Vec<(RequestId, Vec<u32>, usize, usize)> = Vec::new();
        let mut cancelled = Vec::new();
        for action in actions {
            match action {
                Action::Submit { pieces, new, answers: count, drafts, borders } => {
                    let prompt: Vec<u32> =
                        pieces.iter().flat_map(|(seed, len)| text(*seed, *len)).collect();
                    let mut ends: Vec<usize> = Vec::new();
                    for (_, len) in &pieces {
                        ends.push(ends.last().unwrap_or(&0) + len);
                    }
                    // No more answers than there are pages for. Those that the prompt fills are shared at first; a request that
                    // had to make room, and of which nothing was kept, computes each answer's tokens by themselves.
                    let each = (prompt.len() + new + DRAFTS).div_ceil(PAGE_LEN);
                    let count = if count * each > cache_tokens / PAGE_LEN { 1 } else { count };
                    let mut request = request(&prompt, new);
                    request.num_return_sequences = count;
                    if borders {
                        request.borders = ends;
                    }
                    if drafts {
                        let lookup = PromptLookup { num_tokens: DRAFTS, max_matching_ngram_size: 2 };
                        request.speculation = Some(Arc::new(lookup));
                    }
                    asked.push((engine.submit(request).unwrap(), prompt, new, count));
                }
                Action::Steps(count) => (0..count).for_each(|_| answers.step(&mut engine)),
                Action::Cancel(index) => {
                    let open = asked.iter().filter(|(id, ..)| !answers.finished.contains_key(id));
                    let Some(id) = open.map(|(id, ..)| *id).nth(index) else { continue };
                    if engine.cancel(id).is_some() {
                        cancelled.push(id);
                    }
                    engine.audit().unwrap();
                }
            }
        }
        answers.go_on(&mut engine);
        for (id, prompt, new, count) in asked {
            if cancelled.contains(&id) {
                continue;
            }
            let each = expected(&prompt, new.min(448 - prompt.len()));
            let mut got = answers.tokens.remove(&id).unwrap();
            // Answers come token by token in turn, and all are the same.
            got.sort_unstable();
            let mut all = each.repeat(count);
            all.sort_unstable();
            prop_assert_eq!(got, all);
            prop_assert!(matches!(
                answers.finished[&id].0,
                FinishReason::MaxNewTokens | FinishReason::Context
            ));
        }
        let stats = engine.stats();
        prop_assert_eq!(stats.free_pages + stats.prefix_cache.pages, stats.pages);
    }
}
