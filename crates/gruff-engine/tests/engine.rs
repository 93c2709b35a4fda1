//! The engine's policy, on a model whose answers are easy to foretell.

mod adder;

use std::collections::HashMap;
use std::sync::Arc;

use adder::{Adder, Answers, VOCABULARY, expected, options, request};
use gruff_engine::speculation::PromptLookup;
use gruff_engine::{
    BeamParams, Context, Engine, EngineOptions, Event, FinishReason, Guidance, OutputOptions, Request,
};

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
        Engine::new(model.clone(), EngineOptions { step_tokens: Some(64), ..options(1024, 2) }).unwrap();
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
fn prompts_are_scored_token_by_token() {
    // One after the other, in chunks, beside others, after a prompt that begins alike, and after being put off.
    for (step_tokens, cache_tokens) in [(512, None), (3, None), (5, Some(96))] {
        let options = EngineOptions { step_tokens: Some(step_tokens), cache_tokens, ..options(96, 3) };
        let mut engine = Engine::new(Adder::new(false), options).unwrap();
        let outputs = OutputOptions { prompt_logprobs: Some(2), ..OutputOptions::default() };
        let prompts: [Vec<u32>; 3] = [
            vec![3, 3, 6, 7, 19],
            vec![3, 3, 6, 12, 24, 48, 46, 1],
            (0..40).map(|token| token * 7 % VOCABULARY as u32).collect(),
        ];
        engine.submit(request(&prompts[1], 3)).unwrap();
        Answers::run(&mut engine);
        let ids =
            prompts.clone().map(|prompt| engine.submit(Request { outputs, ..request(&prompt, 30) }).unwrap());
        let other = engine.submit(request(&[1, 2], 20)).unwrap();
        let (mut told, mut tokens) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<u32>>::new());
        let run = engine.run(|event| match event {
            Event::PromptDetails { request, details } => {
                told.entry(*request).or_default().extend(details.clone());
            }
            Event::Token { request, id, details, .. } => {
                assert_eq!(*details, None, "only the prompt is asked about");
                tokens.entry(*request).or_default().push(*id);
            }
            Event::Failed { message, .. } => panic!("{message}"),
            _ => {}
        });
        run.unwrap();
        // A logit of 1 among zeros.
        let total = (VOCABULARY as f32 - 1.0 + 1f32.exp()).ln();
        for (prompt, id) in prompts.iter().zip(ids) {
            let found = &told[&id];
            assert_eq!(found.len(), prompt.len() - 1);
            for (place, details) in (1..).zip(found) {
                let likely = prompt[..place].iter().sum::<u32>() % VOCABULARY as u32;
                let logprob = if prompt[place] == likely { 1.0 - total } else { -total };
                assert!((details.logprob.unwrap() - logprob).abs() < 1e-5, "{place} of {prompt:?}");
                assert_eq!((details.top[0].0, details.top.len()), (likely, 2));
            }
            assert_eq!(tokens[&id], expected(prompt, 30));
        }
        assert!(told.len() == 3 && tokens[&other] == expected(&[1, 2], 20));
    }
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
