//! What hooks cost: a model's steps without any, with hooks set and taken away, and with some that change nothing.
//!
//! `cargo run --release -p gruff --example hook_cost [MODEL [ROUNDS]]`
//!
//! All in one process and in turn, on one thread, and of each step the least time of many rounds, so that a
//! busy machine says the same.

use std::error::Error;
use std::time::{Duration, Instant};

use gruff::{AutoModelForCausalLM, BUNDLED, HookGuard};

/// Tokens of a round, each a step of its own.
const STEPS: usize = 32;

/// Where hooks are in a case, and whether they are still there when it is measured.
const CASES: [(&str, &str, bool); 5] = [
    ("none", "", false),
    ("on everything, taken away again", "*", false),
    ("on model.norm", "model.norm", true),
    ("on every layer", "model.layers.*.mlp", true),
    ("on everything", "*", true),
];

/// Each case with the time of a step.
pub(crate) fn run(id: &str, rounds: usize) -> Result<Vec<(&'static str, Duration)>, Box<dyn Error>> {
    let model = AutoModelForCausalLM::from_pretrained(id).threads(1).load()?;
    let mut least = [[Duration::MAX; STEPS]; CASES.len()];
    for _ in 0..rounds {
        for ((_, pattern, stays), least) in CASES.iter().zip(&mut least) {
            let set = || -> Result<Option<HookGuard>, gruff::Error> {
                let some = !pattern.is_empty();
                some.then(|| model.register_forward_hook(pattern, |_, _| Ok(None))).transpose()
            };
            let guard = set()?.filter(|_| *stays);
            let mut cache = model.new_cache(1, STEPS)?;
            for (token, least) in (30..).zip(least) {
                let start = Instant::now();
                model.forward(vec![token], &mut cache)?;
                *least = start.elapsed().min(*least);
            }
            drop(guard);
        }
    }
    let mean = |least: [Duration; STEPS]| least.iter().sum::<Duration>() / STEPS as u32;
    Ok(CASES.iter().zip(least).map(|((name, ..), least)| (*name, mean(least))).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let id = args.next().unwrap_or(BUNDLED.to_owned());
    let times = run(&id, args.next().map_or(Ok(40), |rounds| rounds.parse())?)?;
    let plain = times[0].1.as_secs_f64();
    for (name, time) in times {
        println!("hooks {name:32} {time:10.1?} a step, {:.4}", time.as_secs_f64() / plain);
    }
    Ok(())
}
