//! A small random mixture of experts in F32 against what llama-perplexity and llama-imatrix measured of it
//! (`tests/peers/evaluation-f32.json`). It lies beside the workspace, in `../shared/data/golden`.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use gruff_eval::{Evaluator, EvaluatorOptions, ImatrixOptions, Windows, importance_matrix, perplexity};
use gruff_gguf::Gguf;
use gruff_kernels::{Activations, CpuOptions, Device, KvDtype};
use gruff_text::{Tokenizer, TokenizerOptions};
use serde_json::Value;

const GO: ControlFlow<()> = ControlFlow::Continue(());

#[test]
fn measures_are_llama_cpps_where_nothing_is_rounded() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let model = root.join("../shared/data/golden/moe-f32.gguf");
    if !model.exists() {
        println!("moe-f32.gguf: ../shared/data/golden is absent");
        return;
    }
    let text = std::fs::read_to_string(root.join("tests/peers/persuasion.txt")).unwrap();
    let peer = std::fs::read(root.join("tests/peers/evaluation-f32.json")).unwrap();
    let peer: Value = serde_json::from_slice(&peer).unwrap();
    let size = |key: &str| peer["windows"][key].as_u64().unwrap() as usize;
    let (ctx, chunks) = (size("ctx"), Some(size("chunks")));

    let gguf = Gguf::open(&model).unwrap();
    let device = Device::cpu(CpuOptions { activations: Activations::F32, ..CpuOptions::default() }).unwrap();
    let model = Arc::from(gruff_models::load(&gguf, &device).unwrap());
    let tokenizer = Tokenizer::from_gguf(gguf.metadata(), &TokenizerOptions::new()).unwrap();
    let options = EvaluatorOptions { kv_dtype: KvDtype::F32, memory: None };
    let evaluator = Evaluator::new(model, tokenizer, options);
    let tokens = evaluator.tokenize(&text).unwrap();

    let result = perplexity(&evaluator, &tokens, &Windows { ctx, stride: None, chunks }, |_| GO).unwrap();
    let close = |found: f64, peer: &Value, relative: f64| {
        let expected = peer.as_f64().unwrap();
        (found - expected).abs() <= relative * expected.abs()
    };
    assert!(close(result.perplexity.value, &peer["perplexity"], 1e-4), "{:?}", result.perplexity);
    assert!(close(result.perplexity.error, &peer["error"], 1e-4), "{:?}", result.perplexity);

    let options = ImatrixOptions { ctx, chunks, process_output: false };
    let matrix = importance_matrix(&evaluator, &tokens, &options, |_, _| GO).unwrap();
    let tensors = peer["tensors"].as_object().unwrap();
    assert!(tensors.keys().eq(matrix.tensors.keys()), "{:?}", matrix.tensors.keys());
    for (name, peer) in tensors {
        let found = &matrix.tensors[name];
        let counts: Vec<u64> =
            peer["counts"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).collect();
        assert_eq!(
            (&found.counts, found.sums.len() as u64),
            (&counts, peer["inputs"].as_u64().unwrap()),
            "{name}"
        );
        let sum: f64 = found.sums.iter().sum();
        assert!(close(sum, &peer["sum"], 5e-4), "{name}: {sum}, llama.cpp's is {}", peer["sum"]);
    }
}
