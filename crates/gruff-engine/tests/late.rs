//! Tokens that are told of a step late: the same as those told of at once, whatever else goes on.

mod adder;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use adder::{Adder, Answers, VOCABULARY, expected, options, request};
use gruff_engine::logits::{TokenContext, processor_fn};
use gruff_engine::speculation::PromptLookup;
use gruff_engine::stopping::criterion_fn;
use gruff_engine::{Engine, EngineOptions, Event, FinishReason, Request, RequestId, SamplingParams};
use gruff_kernels::PAGE_LEN;

/// What became of every answer.
type Ends = BTreeMap<(RequestId, usize), (Vec<u32>, Option<FinishReason>)>;

fn engine(recurrent: bool, late: bool, options: EngineOptions) -> (std::sync::Arc<Adder>, Engine) {
    let model = Adder::new(recurrent);
    let engine = Engine::new(model.clone(), EngineOptions { late_ids: Some(late), ..options }).unwrap();
    (model, engine)
}

/// Serves the requests, each `at` its step, and cancels those that are to be cancelled once they have so many tokens.
fn serve(engine: &mut Engine, requests: &[(usize, Request)], cancel: &[(usize, usize)]) -> Ends {
    let mut ends = Ends::new();
    let mut ids = Vec::new();
    let mut waiting: Vec<&(usize, Request)> = requests.iter().collect();
    for step in 0.. {
        while let Some((_, request)) = waiting.first().filter(|(at, _)| *at <= step) {
            ids.push(engine.submit(request.clone()).unwrap());
            waiting.remove(0);
        }
        if waiting.is_empty() && engine.is_idle() {
            break;
        }
        for event in engine.step().unwrap() {
            match event {
                Event::Token { request, index, id, .. } => {
                    ends.entry((request, index)).or_default().0.push(id)
                }
                Event::Finished { request, index, reason, usage } => {
                    let end = ends.entry((request, index)).or_default();
                    assert_eq!(end.0.len(), usage.new_tokens);
                    assert!(end.1.replace(reason).is_none(), "an answer ends once");
                }
                Event::Failed { message, .. } => panic!("{message}"),
                _ => {}
            }
        }
        engine.audit().unwrap();
        for (which, tokens) in cancel {
            let Some(id) = ids.get(*which) else { continue };
            let has = ends.get(&(*id, 0)).is_some_and(|end| end.0.len() >= *tokens && end.1.is_none());
            if has && engine.cancel(*id).is_some() {
                let end = ends.get_mut(&(*id, 0)).unwrap();
                end.0.truncate(*tokens);
                end.1 = Some(FinishReason::Cancelled);
                engine.audit().unwrap();
            }
        }
    }
    ends
}

fn sampled(prompt: &[u32], tokens: usize, seed: u64) -> Request {
    let sampling = SamplingParams { temperature: 1.5, top_k: 20, seed, ..SamplingParams::default() };
    Request { sampling, ..request(prompt, tokens) }
}

/// Of every kind some, coming and going at different times.
fn mixed() -> Vec<(usize, Request)> {
    let long: Vec<u32> = (0..700).map(|i| i * 7 % VOCABULARY as u32).collect();
    let ends = |request: Request| Request { end_tokens: vec![7, 30], ..request };
    let stop = criterion_fn("small at last", |context: &TokenContext<'_>| {
        context.new_tokens().len() >= 9 && context.tokens.last() < Some(&20)
    });
    vec![
        (0, request(&[1, 2, 3], 70)),
        (0, ends(sampled(&[5, 6], 200, 1))),
        (0, Request { stopping: vec![stop], ..sampled(&[9; 40], 300, 2) }),
        (3, sampled(&long, 30, 3)),
        (4, ends(request(&[4], 100))),
        (10, Request { num_return_sequences: 3, ..ends(sampled(&[8, 1, 1], 90, 4)) }),
        (11, request(&long[..64], 1)),
        (60, sampled(&[2; 31], 64, 5)),
    ]
}

#[test]
fn answers_are_those_of_the_immediate_loop() {
    for recurrent in [false, true] {
        let options = || EngineOptions { step_tokens: Some(96), ..options(1024, 4) };
        let (_, mut immediate) = engine(recurrent, false, options());
        let (model, mut late) = engine(recurrent, true, options());
        let wanted = serve(&mut immediate, &mixed(), &[]);
        assert_eq!(serve(&mut late, &mixed(), &[]), wanted);
        assert!(wanted.values().any(|end| end.1 == Some(FinishReason::EndToken)));
        assert!(wanted.values().any(|end| end.1 == Some(FinishReason::Criterion)));
        assert!(model.late.load(Ordering::Relaxed) > 300, "most tokens went from step to step on the device");
        assert_eq!(late.stats().free_pages + late.stats().prefix_cache.pages, late.stats().pages);
    }
}

#[test]
fn requests_that_need_their_tokens_at_once_are_served_beside_others() {
    let odd = processor_fn("odd", |_, logits| {
        logits.iter_mut().step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
        Ok(())
    });
    let penalty = SamplingParams { repetition_penalty: 1.3, temperature: 1.0, ..SamplingParams::default() };
    let lookup = std::sync::Arc::new(PromptLookup { num_tokens: 4, max_matching_ngram_size: 2 });
    let mut requests = mixed();
    requests.insert(3, (2, Request { processors: vec![odd], ..sampled(&[3, 3], 25, 8) }));
    requests.push((61, Request { sampling: penalty, ..request(&[3, 4], 20) }));
    requests.push((62, Request { speculation: Some(lookup), ..request(&[1, 2, 1, 2, 1], 20) }));
    let mut all = Vec::new();
    for late in [false, true] {
        let (model, mut engine) = engine(false, late, options(1024, 5));
        all.push(serve(&mut engine, &requests, &[]));
        assert_eq!(model.late.load(Ordering::Relaxed) > 0, late);
    }
    assert_eq!(all[0], all[1]);
}

#[test]
fn a_cancelled_answer_leaves_nothing_behind() {
    for recurrent in [false, true] {
        let mut all = Vec::new();
        for late in [false, true] {
            let (_, mut engine) = engine(recurrent, late, options(1024, 4));
            all.push(serve(&mut engine, &mixed(), &[(0, 20), (2, 3), (3, 11)]));
        }
        assert_eq!(all[0], all[1]);
    }
}

#[test]
fn a_request_that_had_to_wait_goes_on_with_the_same_tokens() {
    for recurrent in [false, true] {
        let (model, mut engine) =
            engine(recurrent, true, EngineOptions { cache_tokens: Some(256), ..options(200, 4) });
        let prompts: Vec<Vec<u32>> = (1..5).map(|n| vec![n; 20]).collect();
        let ids: Vec<_> = prompts.iter().map(|prompt| engine.submit(request(prompt, 120)).unwrap()).collect();
        let answers = Answers::run(&mut engine);
        for (prompt, id) in prompts.iter().zip(ids) {
            assert_eq!(answers.tokens[&id], expected(prompt, 120));
        }
        assert!(engine.stats().preemptions > 0);
        assert!(model.late.load(Ordering::Relaxed) > 100);
    }
}

#[test]
fn a_request_that_had_to_wait_goes_on_from_its_state() {
    // The second comes to a page's end when there is none left, and the first ends soon after.
    let (first, second) = (3 * PAGE_LEN + 4, PAGE_LEN - 12);
    let waits = 6 * PAGE_LEN;
    let pages = waits / PAGE_LEN + (waits + first - second).div_ceil(PAGE_LEN);
    let requests = vec![
        (0, request(&vec![1; first], waits - second + 6)),
        (0, request(&vec![2; second], waits + PAGE_LEN)),
    ];
    let run = |late| {
        let options = EngineOptions { cache_tokens: Some(pages * PAGE_LEN), ..options(400, 2) };
        let (model, mut engine) = engine(true, late, options);
        let ends = serve(&mut engine, &requests, &[]);
        assert_eq!(engine.stats().preemptions, 1);
        (ends, model.computed())
    };
    let ((wanted, least), (ends, computed)) = (run(false), run(true));
    assert_eq!(ends, wanted);
    assert!(least < first + second + 2 * waits + PAGE_LEN + 16, "{least} tokens: nothing is computed twice");
    assert!(computed <= least + requests.len(), "{computed} tokens went through the model, not {least}");
}

#[test]
fn pages_of_an_answer_whose_end_is_on_its_way_are_waited_for() {
    // Two answers of one request share a page, have one each, and one has ended when both would need a third.
    let stop = criterion_fn("one of them", |context: &TokenContext<'_>| {
        context.seed == 6 && context.tokens.len() == 2 * PAGE_LEN + 1
    });
    let both =
        Request { num_return_sequences: 2, stopping: vec![stop], ..sampled(&[1; PAGE_LEN], 2 * PAGE_LEN, 5) };
    let mut all = Vec::new();
    for late in [false, true] {
        let size = 3 * PAGE_LEN;
        let (model, mut engine) =
            engine(false, late, EngineOptions { cache_tokens: Some(size), ..options(size, 2) });
        all.push(serve(&mut engine, &[(0, both.clone())], &[]));
        assert_eq!(model.late.load(Ordering::Relaxed) > 50, late);
    }
    assert_eq!(all[0], all[1]);
    let reasons: Vec<_> = all[0].values().map(|end| end.1).collect();
    assert_eq!(reasons, [Some(FinishReason::MaxNewTokens), Some(FinishReason::Criterion)]);
}

#[test]
fn tokens_from_before_a_step_that_fails_are_told_of() {
    for recurrent in [false, true] {
        let (model, mut engine) = engine(recurrent, true, options(1024, 2));
        let prompt = vec![3; 70];
        // The last token of the second is on its way when the step fails.
        let id = engine.submit(request(&prompt, 50)).unwrap();
        let other = engine.submit(request(&[4; 60], 10)).unwrap();
        let mut answers = Answers::default();
        (0..10).for_each(|_| answers.step(&mut engine));
        assert_eq!(answers.tokens[&id], expected(&prompt, 9));
        model.fails.store(true, Ordering::Relaxed);
        let events = engine.step().unwrap();
        engine.audit().unwrap();
        assert!(matches!(events.last(), Some(Event::Failed { request, .. }) if *request == id), "{events:?}");
        events
            .iter()
            .filter(|event| !matches!(event, Event::Failed { .. }))
            .for_each(|event| answers.take(event));
        assert_eq!(answers.tokens[&id], expected(&prompt, 10));
        assert_eq!(answers.tokens[&other], expected(&[4; 60], 10));
        assert_eq!(answers.finished[&other].0, FinishReason::MaxNewTokens);
        assert!(engine.is_idle());
        model.fails.store(false, Ordering::Relaxed);
        let id = engine.submit(request(&prompt, 50)).unwrap();
        assert_eq!(Answers::run(&mut engine).tokens[&id], expected(&prompt, 50));
    }
}

#[test]
fn what_an_ended_answer_held_serves_the_next_turn() {
    let (_, mut engine) = engine(true, true, options(1024, 1));
    let mut prompt = vec![3; 100];
    for turn in 0..4 {
        let id = engine.submit(request(&prompt, 50)).unwrap();
        let answers = Answers::run(&mut engine);
        assert_eq!(answers.tokens[&id], expected(&prompt, 50), "turn {turn}");
        let cached = answers.finished[&id].1.cached_tokens;
        assert!(turn == 0 || cached + 8 >= prompt.len(), "turn {turn}: {cached} of {}", prompt.len());
        prompt.extend(&answers.tokens[&id]);
        prompt.extend([turn; 5]);
    }
}
