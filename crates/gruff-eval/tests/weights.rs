//! Importance matrices and comparisons, on tiny random models of several architectures.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use common::{File, cpu, ids};
use gruff_blocks::BlockType;
use gruff_eval::{
    Evaluator, EvaluatorOptions, ImatrixOptions, TensorComparison, Windows, compare_logits, compare_tensors,
    importance_matrix,
};
use gruff_gguf::Gguf;
use gruff_kernels::Activations;
use gruff_text::{Tokenizer, TokenizerOptions};

#[path = "../../gruff-models/tests/common/mod.rs"]
mod common;
#[path = "../../gruff/examples/tiny_random/model.rs"]
mod tiny;

const GO: ControlFlow<()> = ControlFlow::Continue(());

fn tokenizer() -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    tiny::write(&path).unwrap();
    Tokenizer::from_gguf(Gguf::open(&path).unwrap().metadata(), &TokenizerOptions::new()).unwrap()
}

fn evaluator(file: &File) -> Evaluator {
    let model: Arc<dyn gruff_models::Model> = Arc::from(file.load(&cpu(Activations::F32)));
    Evaluator::new(model, tokenizer(), EvaluatorOptions::default())
}

fn options(process_output: bool) -> ImatrixOptions {
    ImatrixOptions { ctx: 32, chunks: Some(2), process_output }
}

#[test]
fn the_matrix_is_the_sum_of_squares() {
    let evaluator = evaluator(&File::new("llama", BlockType::Q8_0));
    let squares = Arc::new(Mutex::new(vec![0.0_f64; 64]));
    let sums = squares.clone();
    let _guard = evaluator
        .model()
        .hooks()
        .on("model.layers.1.post_attention_layernorm", move |_, x| {
            let mut sums = sums.lock().unwrap();
            for row in x.to_vec_f32()?.chunks(64) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value).powi(2));
            }
            Ok(None)
        })
        .unwrap();
    let mut heard = Vec::new();
    let matrix = importance_matrix(&evaluator, &ids(1, 100), &options(false), |done, total| {
        heard.push((done, total));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(heard, [(1, 2), (2, 2)]);
    for name in ["blk.1.ffn_up.weight", "blk.1.ffn_gate.weight"] {
        let statistics = &matrix.tensors[name];
        assert_eq!(statistics.counts, [64]);
        let squares = squares.lock().unwrap();
        assert!(statistics.sums.iter().zip(squares.iter()).all(|(a, b)| (a - b).abs() <= 1e-9 * b), "{name}");
    }
    assert_eq!(matrix.tensors.len(), 4 * 7, "seven matrices a block");
    assert!(format!("{:?}", evaluator.model().hooks()).contains("inputs: []"), "its hook is gone");
}

#[test]
fn experts_are_counted_apart() {
    for architecture in ["qwen3moe", "qwen35moe"] {
        let evaluator = evaluator(&File::new(architecture, BlockType::Q8_0));
        let matrix = importance_matrix(&evaluator, &ids(2, 64), &options(true), |_, _| GO).unwrap();
        assert!(matrix.tensors.contains_key("output.weight"), "{architecture}");
        let router = &matrix.tensors["blk.2.ffn_gate_inp.weight"];
        for name in ["blk.2.ffn_gate_exps.weight", "blk.2.ffn_up_exps.weight"] {
            let experts = &matrix.tensors[name];
            assert_eq!((experts.counts.len(), experts.counts.iter().sum::<u64>()), (4, 2 * 64));
            for (input, sum) in router.sums.iter().enumerate() {
                let over_experts: f64 = experts.sums.iter().skip(input).step_by(experts.width).sum();
                assert!(
                    (over_experts - 2.0 * sum).abs() < 1e-6 * sum.max(1e-3),
                    "every token has two experts"
                );
            }
        }
        let down = &matrix.tensors["blk.2.ffn_down_exps.weight"];
        assert_eq!(
            (down.counts.clone(), down.width),
            (matrix.tensors["blk.2.ffn_up_exps.weight"].counts.clone(), 32)
        );
    }
}

#[test]
fn the_file_is_llama_imatrixs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("imatrix.gguf");
    let evaluator = evaluator(&File::new("qwen3moe", BlockType::Q8_0));
    let matrix = importance_matrix(&evaluator, &ids(3, 64), &options(false), |_, _| GO).unwrap();
    matrix.write(&path, &["calibration.txt"]).unwrap();
    let file = Gguf::open(&path).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.require_str("general.type").unwrap(), "imatrix");
    assert_eq!(metadata.u32("imatrix.chunk_count").unwrap(), Some(2));
    assert_eq!(metadata.u32("imatrix.chunk_size").unwrap(), Some(32));
    assert!(metadata.contains("imatrix.datasets"));
    assert_eq!(file.tensors().len(), 2 * matrix.tensors.len());
    let values = |name: &str| {
        let tensor = file.require(name).unwrap();
        let data = file.data(tensor).unwrap();
        (tensor.shape().to_vec(), BlockType::F32.unpack_to_vec(&data).unwrap())
    };
    let (shape, sums) = values("blk.0.ffn_down_exps.weight.in_sum2");
    let statistics = &matrix.tensors["blk.0.ffn_down_exps.weight"];
    assert_eq!(shape, [32, 4]);
    assert!(sums.iter().zip(&statistics.sums).all(|(a, b)| *a == *b as f32));
    let (shape, counts) = values("blk.0.ffn_down_exps.weight.counts");
    assert_eq!(shape, [1, 4]);
    assert!(counts.iter().zip(&statistics.counts).all(|(a, b)| *a == *b as f32));
    assert_eq!(values("blk.0.attn_q.weight.counts"), (vec![1], vec![64.0]));
    let error = matrix.write(&folder.path().join("no/imatrix.gguf"), &[]).unwrap_err().to_string();
    assert!(error.contains("imatrix.gguf"), "{error}");
}

fn compare(a: &File, b: &File) -> Vec<TensorComparison> {
    compare_tensors(&a.build(), &b.build(), |_, _| GO).unwrap()
}

#[test]
fn tensors_are_compared_by_name() {
    let exact = File::new("llama", BlockType::F32);
    let same = compare(&exact, &exact);
    assert_eq!(same.len(), exact.tensors.len());
    assert!(same.iter().all(|tensor| tensor.matches() && tensor.relative() == 0.0));

    let mut other = File::new("llama", BlockType::Q8_0);
    other.take("blk.0.ffn_up.weight");
    other.vector("rope_freqs.weight", 16, 1.0);
    let norm = other.take("output_norm.weight");
    other.push("output_norm.weight", &[32, 2], BlockType::F32, norm.values);
    let compared = compare(&exact, &other);
    let find = |name: &str| compared.iter().find(|tensor| tensor.name == name).unwrap();
    let packed = find("blk.1.ffn_up.weight");
    let errors = packed.errors.unwrap();
    assert_eq!((packed.block_type.as_deref(), packed.other_type.as_deref()), (Some("F32"), Some("Q8_0")));
    assert!((1e-4..1e-2).contains(&errors.relative) && errors.cosine > 0.9999 && errors.max > errors.rms);
    assert_eq!(find("blk.1.attn_norm.weight").relative(), 0.0);
    for name in ["blk.0.ffn_up.weight", "rope_freqs.weight", "output_norm.weight"] {
        assert_eq!((find(name).matches(), find(name).relative()), (false, f64::INFINITY), "{name}");
    }
}

#[test]
fn logits_are_compared_on_a_text() {
    let text = "hello ".repeat(40);
    let windows = Windows { ctx: 32, stride: None, chunks: Some(2) };
    // As many tokens as the tokenizer has.
    let file = |block_type| {
        let mut file = File::new("llama", block_type);
        for name in ["token_embd.weight", "output.weight"] {
            file.take(name);
            file.matrix(name, &[64, 265], block_type);
        }
        evaluator(&file)
    };
    let (exact, packed) = (file(BlockType::F32), file(BlockType::Q8_0));
    let same = compare_logits(&exact, &exact, &text, &windows, |_, _| GO).unwrap();
    assert_eq!((same.tokens, same.nmse, same.same_top.value), (30, 0.0, 1.0));
    assert!(same.kld.value.abs() < 1e-9 && same.perplexity == same.other_perplexity);
    let near = compare_logits(&exact, &packed, &text, &windows, |_, _| GO).unwrap();
    assert!((1e-8..1e-2).contains(&near.nmse) && near.kld.value > 0.0, "{near:?}");
    let small = evaluator(&File::new("llama", BlockType::F32));
    let error = compare_logits(&exact, &small, &text, &windows, |_, _| GO).unwrap_err().to_string();
    assert!(error.contains("265 and 96 tokens"), "{error}");
}
