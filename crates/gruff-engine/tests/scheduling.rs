//! Who waits for whom, on a model whose answers are easy to foretell.

mod adder;

use adder::{Adder, Answers, expected, options, request};
use gruff_engine::{Engine, EngineOptions, Event, Request};

#[test]
fn a_long_prompt_makes_answers_wait_for_a_bounded_piece_of_it() {
    let model = Adder::new(true);
    let options = EngineOptions { mixed_tokens: Some(64), step_tokens: Some(512), ..options(4096, 4) };
    let mut engine = Engine::new(model.clone(), options).unwrap();
    let short: Vec<_> = (1..4).map(|token| engine.submit(request(&[token; 9], 200)).unwrap()).collect();
    let mut answers = Answers::default();
    answers.step(&mut engine);
    let long: Vec<u32> = (0..3000).map(|index| index % 50).collect();
    let late = engine.submit(request(&long, 3)).unwrap();
    let before = model.steps.lock().unwrap().len();
    let mut steps = 1;
    while !answers.tokens.contains_key(&late) {
        answers.step(&mut engine);
        steps += 1;
        for id in &short {
            assert_eq!(answers.tokens[id].len(), steps, "each answer has a token of every step");
        }
    }
    assert!(model.steps.lock().unwrap()[before..].iter().all(|(tokens, _)| *tokens <= 64 + short.len()));
    answers.go_on(&mut engine);
    assert_eq!(answers.tokens[&late], expected(&long, 3));
}

#[test]
fn without_answers_in_progress_a_prompt_has_whole_steps() {
    let model = Adder::new(false);
    let options = EngineOptions { mixed_tokens: Some(16), step_tokens: Some(512), ..options(4096, 4) };
    let mut engine = Engine::new(model.clone(), options).unwrap();
    engine.submit(request(&[7; 2048], 1)).unwrap();
    Answers::run(&mut engine);
    assert_eq!(model.steps.lock().unwrap().len(), 4);
}

#[test]
fn short_prompts_do_not_wait_for_a_long_one_nor_does_it_wait_for_ever() {
    let model = Adder::new(false);
    let options = EngineOptions { mixed_tokens: Some(64), step_tokens: Some(64), ..options(4096, 3) };
    let mut engine = Engine::new(model.clone(), options).unwrap();
    let long: Vec<u32> = (0..2000).map(|index| index % 50).collect();
    let slow = engine.submit(request(&long, 3)).unwrap();
    let mut answers = Answers::default();
    let (mut done, mut steps) = (0, 0);
    while !answers.tokens.contains_key(&slow) {
        // There is always another short one.
        while engine.stats().running + engine.stats().waiting < 3 {
            engine.submit(request(&[done as u32 % 50 + 1, 2, 3], 2)).unwrap();
            done += 1;
        }
        answers.step(&mut engine);
        steps += 1;
        assert!(steps < 100, "it has most of every other step");
    }
    assert!(answers.finished.len() > 20, "{} short ones were answered meanwhile", answers.finished.len());
    answers.go_on(&mut engine);
    assert_eq!(answers.tokens[&slow], expected(&long, 3));
}

#[test]
fn who_comes_first_begins_first() {
    let mut engine = Engine::new(Adder::new(true), options(512, 2)).unwrap();
    let ids: Vec<_> =
        (0..10).map(|index| engine.submit(request(&vec![1; 90 - 7 * index], 5)).unwrap()).collect();
    let mut order = Vec::new();
    let run = engine.run(|event| match event {
        Event::Token { request, .. } if !order.contains(request) => order.push(*request),
        _ => {}
    });
    run.unwrap();
    // Two begin together; of those, the shorter prompt may be through first.
    for (place, id) in order.iter().enumerate() {
        assert!(ids.iter().position(|other| other == id).unwrap().abs_diff(place) <= 1, "{order:?}");
    }
}

#[test]
fn what_runs_out_of_pages_goes_on_later_from_what_was_kept() {
    for recurrent in [false, true] {
        let model = Adder::new(recurrent);
        // Room for about two of the three whole.
        let options = EngineOptions { cache_tokens: Some(1024), ..options(1024, 3) };
        let mut engine = Engine::new(model.clone(), options).unwrap();
        let prompts: Vec<Vec<u32>> = (1..4).map(|seed| (0..290).map(|i| (i * seed) % 50).collect()).collect();
        let ids: Vec<_> = prompts.iter().map(|prompt| engine.submit(request(prompt, 200)).unwrap()).collect();
        let mut answers = Answers::default();
        let (mut steps, mut ended) = (0, 0);
        while !engine.is_idle() {
            answers.step(&mut engine);
            steps += 1;
            ended = ended.max(answers.finished.len());
        }
        for (prompt, id) in prompts.iter().zip(&ids) {
            assert_eq!(answers.tokens[id], expected(prompt, 200));
        }
        let preemptions = engine.stats().preemptions;
        assert!((1..4).contains(&preemptions), "the youngest, and not again in every step: {preemptions}");
        let least = 3 * (290 + 199);
        let again = model.computed() - least;
        assert!(again < 290 + 200, "not all of it was computed again: {again} tokens in {steps} steps");
        // The oldest was never held up.
        assert_eq!(answers.finished[&ids[0]].1.new_tokens, 200);
    }
}

#[test]
fn a_prompt_waits_for_what_running_ones_still_have_to_take() {
    // 20 pages; each prompt needs 13 and takes them step by step.
    let options = EngineOptions { cache_tokens: Some(640), step_tokens: Some(64), ..options(448, 3) };
    let mut engine = Engine::new(Adder::new(false), options).unwrap();
    let prompts: Vec<Vec<u32>> = (1..4).map(|token| vec![token; 400]).collect();
    let ids: Vec<_> = prompts.iter().map(|prompt| engine.submit(request(prompt, 5)).unwrap()).collect();
    let answers = Answers::run(&mut engine);
    for (prompt, id) in prompts.iter().zip(&ids) {
        assert_eq!(answers.tokens[id], expected(prompt, 5));
    }
    assert_eq!(engine.stats().preemptions, 0, "nothing is computed twice");
}

#[test]
fn one_request_of_a_client_does_not_wait_behind_the_hundred_of_another() {
    let mut engine = Engine::new(Adder::new(true), options(256, 2)).unwrap();
    let ask = |engine: &mut Engine, client| {
        engine.submit(Request { client, ..request(&[client as u32; 20], 4) }).unwrap()
    };
    let many: Vec<_> = (0..100).map(|_| ask(&mut engine, 1)).collect();
    let mut answers = Answers::default();
    answers.step(&mut engine);
    let one = ask(&mut engine, 2);
    let two = ask(&mut engine, 2);
    let mut order = Vec::new();
    let run = engine.run(|event| {
        if let Event::Finished { request, .. } = event {
            order.push(*request);
        }
    });
    run.unwrap();
    let place = |id| order.iter().position(|other| *other == id).unwrap();
    // Those that had begun end first, and then they take turns.
    assert!(place(one) <= 3 && place(two) <= 5, "{} and {} of {}", place(one), place(two), order.len());
    let places: Vec<_> = many.iter().map(|id| place(*id)).collect();
    assert!(places.is_sorted_by(|a, b| *a < *b + 2), "each client's requests begin in their order");
    assert_eq!(order.len(), 102);
}

#[test]
fn requests_that_were_given_up_do_not_push_their_client_back() {
    // Whether the engine hears of the next one or of the end of the last one first.
    for ask_first in [false, true] {
        let mut engine = Engine::new(Adder::new(true), options(256, 1)).unwrap();
        let ask = |engine: &mut Engine, client| {
            engine.submit(Request { client, ..request(&[client as u32; 20], 4) }).unwrap()
        };
        let many: Vec<_> = (0..100).map(|_| ask(&mut engine, 1)).collect();
        let mut answers = Answers::default();
        answers.step(&mut engine);
        // One request for each key that is pressed, and each ends the one before.
        let mut last = ask(&mut engine, 2);
        for _ in 0..50 {
            if ask_first {
                let next = ask(&mut engine, 2);
                engine.cancel(last).unwrap();
                last = next;
            } else {
                engine.cancel(last).unwrap();
                last = ask(&mut engine, 2);
            }
        }
        // Many at once, given up in any order, and two that are not.
        let hasty: Vec<_> = (0..64).map(|_| ask(&mut engine, 3)).collect();
        let kept = [ask(&mut engine, 3), ask(&mut engine, 3)];
        for at in (0..64).map(|at| at * 37 % 64) {
            engine.cancel(hasty[at]).unwrap();
            engine.audit().unwrap();
        }
        answers.go_on(&mut engine);
        let place = |id| answers.order.iter().position(|other| *other == id).unwrap();
        assert!(place(last) <= 2 && place(kept[0]) <= 2, "{} {}", place(last), place(kept[0]));
        assert!((place(kept[0]) + 1..=4).contains(&place(kept[1])), "{}", place(kept[1]));
        assert!(many.is_sorted_by_key(|id| place(*id)), "the other client's keep their order");
    }
}

#[test]
fn what_a_preempted_prompt_had_computed_is_not_told_as_cached() {
    // 40 pages. The second prompt goes through in small pieces, while the first answer grows by more pages than were
    // left beside it.
    let few = EngineOptions { cache_tokens: Some(1280), mixed_tokens: Some(4), ..options(1280, 2) };
    let mut engine = Engine::new(Adder::new(false), few).unwrap();
    let (one, two) = (vec![1; 200], vec![2; 1000]);
    let first = engine.submit(request(&one, 300)).unwrap();
    let mut answers = Answers::default();
    answers.step(&mut engine);
    let second = engine.submit(request(&two, 5)).unwrap();
    while engine.stats().preemptions == 0 {
        answers.step(&mut engine);
    }
    assert!(!answers.tokens.contains_key(&second), "it was at its prompt");
    answers.go_on(&mut engine);
    assert_eq!(answers.tokens[&first], expected(&one, 300));
    assert_eq!(answers.tokens[&second], expected(&two, 5));
    assert!(engine.stats().prefix_cache.cached_tokens > 0, "it went on from what it had computed");
    let usage = answers.finished[&second].1;
    assert_eq!(usage.cached_tokens, 0);
}
