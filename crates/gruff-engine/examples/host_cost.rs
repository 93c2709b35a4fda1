//! What the host does for a decode step on an NVIDIA card: microseconds from one step to the next, for each number of
//! sequences, greedy, drawn with top-k and top-p, and drawn with a penalty too.
//!
//!     CUDA_EMULATOR_IDLE=1 cargo run --release -p gruff-engine --example host_cost -- FILE [SEQUENCES,..]
//!
//! With the driver of `tools/emulator`, whose kernels then do nothing, that is the host's time alone; on a card it is the
//! larger one of the host's and the card's.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use gruff_engine::{Context, Engine, EngineOptions, Request, SamplingParams};
use gruff_gguf::Gguf;
use gruff_kernels::{CudaOptions, Device};

/// Tokens of a prompt, and of an answer before and while it is measured.
const PROMPT: usize = 16;
const WARM: usize = 20;
const STEPS: usize = 400;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("which file?")?;
    let sizes = arguments.next().unwrap_or_else(|| "1,8,32".to_owned());
    let device = Device::cuda(0, CudaOptions::default())?;
    let model: Arc<dyn gruff_models::Model> = gruff_models::load(&Gguf::open(&file)?, &device)?.into();
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let drawn = SamplingParams { temperature: 0.8, top_k: 20, top_p: 0.95, ..greedy.clone() };
    let penalized = SamplingParams { repetition_penalty: 1.1, ..drawn.clone() };
    println!("sequences  greedy   drawn  penalized");
    for size in sizes.split(',') {
        let count: usize = size.parse()?;
        let options = EngineOptions {
            context: Context::Tokens(PROMPT + WARM + STEPS + 8),
            max_sequences: count,
            prefix_cache: Some(0),
            ..EngineOptions::default()
        };
        let mut engine = Engine::new(model.clone(), options)?;
        let mut line = format!("{count:9}");
        for sampling in [&greedy, &drawn, &penalized] {
            for client in 0..count {
                let prompt = (0..PROMPT).map(|token| (client * PROMPT + token) as u32 % 1000 + 1).collect();
                let mut request = Request::new(prompt);
                request.sampling = SamplingParams { seed: client as u64, ..sampling.clone() };
                request.max_new_tokens = Some(WARM + STEPS);
                engine.submit(request)?;
            }
            for _ in 0..WARM {
                engine.step()?;
            }
            let started = Instant::now();
            let mut events = 0;
            for _ in 0..STEPS / 2 {
                events += engine.step()?.len();
            }
            let taken = started.elapsed();
            if events < count * (STEPS / 2 - 2) {
                return Err(format!("{events} events of {count} answers: they do not go on").into());
            }
            line += &format!("{:8.1}", taken.as_secs_f64() * 1e6 / (STEPS / 2) as f64);
            engine.run(|_| {})?;
        }
        println!("{line}");
    }
    Ok(())
}
