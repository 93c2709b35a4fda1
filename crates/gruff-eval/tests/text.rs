//! Perplexity, KL divergence and multiple choice on a tiny random model.

use std::ops::ControlFlow;

use gruff::{AutoModelForCausalLM, AutoTokenizer, Dtype, Forward};
use gruff_eval::{
    Evaluator, EvaluatorOptions, Task, Windows, kl_divergence, multiple_choice, perplexity, save_logits,
};
use gruff_kernels::KvDtype;
use tempfile::TempDir;

#[path = "../../gruff/examples/tiny_random/model.rs"]
mod tiny;

const TEXT: &str = "the hen fell in the well, and then the men all helped the hen. \
                    the hen told the tale to all the men in the hall.";

/// A model in a folder of its own.
struct Fixture {
    folder: TempDir,
    model: AutoModelForCausalLM,
    evaluator: Evaluator,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        tiny::write(&path).unwrap();
        let id = path.to_str().unwrap();
        let model = AutoModelForCausalLM::from_pretrained(id).dtype(Dtype::F32).load().unwrap();
        let tokenizer = AutoTokenizer::from_pretrained(id).load().unwrap();
        let options = EvaluatorOptions { kv_dtype: KvDtype::F32, memory: None };
        let evaluator = Evaluator::new(model.model().clone(), tokenizer.tokenizer().clone(), options);
        Self { folder, model, evaluator }
    }

    /// ln p of every token of `ids` but the first, by way of plain logits.
    fn log_probs(&self, ids: &[u32]) -> Vec<f64> {
        let mut sequence = Forward::new(&self.model, ids.len()).unwrap();
        let mut rows = Vec::new();
        let keep = |row: &[f32]| {
            rows.push(row.to_vec());
            Ok::<(), gruff::Error>(())
        };
        sequence.push_all(ids, keep).unwrap();
        let log_prob = |(row, next): (&Vec<f32>, &u32)| {
            let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
            f64::from(row[*next as usize]) - sum.ln()
        };
        rows.iter().zip(&ids[1..]).map(log_prob).collect()
    }
}

const GO: ControlFlow<()> = ControlFlow::Continue(());

#[test]
fn perplexity_is_what_its_definition_says() {
    let fixture = Fixture::new();
    let tokens = fixture.evaluator.tokenize(&format!("{TEXT}\n")).unwrap();
    assert_eq!(tokens, fixture.evaluator.tokenize(TEXT).unwrap(), "one line end is dropped");
    let mut heard = Vec::new();
    let windows = Windows { ctx: 32, stride: None, chunks: None };
    let result = perplexity(&fixture.evaluator, &tokens, &windows, |chunk| {
        heard.push(*chunk);
        ControlFlow::Continue(())
    })
    .unwrap();
    let scored: Vec<f64> =
        tokens.chunks_exact(32).flat_map(|window| fixture.log_probs(window)[16..].to_vec()).collect();
    let mean = -scored.iter().sum::<f64>() / scored.len() as f64;
    assert_eq!(result.tokens as usize, scored.len());
    assert!((result.nll.value - mean).abs() < 1e-6, "{} {mean}", result.nll.value);
    assert!((result.perplexity.value / mean.exp() - 1.0).abs() < 1e-6);
    assert!(result.perplexity.error > 0.0);
    assert_eq!(heard, result.chunks);
    assert_eq!(result.chunks.last().unwrap().perplexity, result.perplexity);
    let bits = result.nll.value * result.tokens as f64 / std::f64::consts::LN_2;
    assert!((result.bits_per_byte.unwrap() - bits / result.bytes as f64).abs() < 1e-9);
}

#[test]
fn strided_windows_score_their_last_tokens() {
    let fixture = Fixture::new();
    let tokens = fixture.evaluator.tokenize(TEXT).unwrap();
    let windows = Windows { ctx: 32, stride: Some(8), chunks: Some(2) };
    let result = perplexity(&fixture.evaluator, &tokens, &windows, |_| GO).unwrap();
    let last = |start: usize| fixture.log_probs(&tokens[start..start + 32])[23..].to_vec();
    let scored = [last(0), last(8)].concat();
    assert_eq!((result.tokens, scored.len()), (16, 16));
    let mean = -scored.iter().sum::<f64>() / 16.0;
    assert!((result.nll.value - mean).abs() < 1e-6);
}

#[test]
fn a_model_does_not_diverge_from_itself() {
    let Fixture { folder, evaluator, .. } = Fixture::new();
    let tokens = evaluator.tokenize(TEXT).unwrap();
    let windows = Windows { ctx: 32, stride: None, chunks: None };
    let base = folder.path().join("base.kld");
    let saved = save_logits(&evaluator, &tokens, &windows, &base, |_| GO).unwrap();
    let result = kl_divergence(&evaluator, &base, None, |_| GO).unwrap();
    assert_eq!(result.tokens, saved.tokens);
    assert!((result.perplexity.value - saved.perplexity.value).abs() < 1e-9);
    // What 16 bits a log-probability can keep.
    assert!(result.kld.value.abs() < 1e-4 && result.kld_percentiles.maximum < 1e-3, "{:?}", result.kld);
    assert!(result.ln_ratio.value.abs() < 1e-3 && result.rms_delta_p.value < 1e-3);
    assert_eq!(result.same_top.value, 1.0);
    assert!(result.correlation > 0.9999);
    let first = kl_divergence(&evaluator, &base, Some(1), |_| GO).unwrap();
    assert_eq!((first.chunks.len(), first.chunks[0].kld), (1, result.chunks[0].kld));
}

#[test]
fn a_stop_leaves_no_file() {
    let Fixture { folder, evaluator, .. } = Fixture::new();
    let tokens = evaluator.tokenize(TEXT).unwrap();
    let windows = Windows { ctx: 16, stride: None, chunks: None };
    let base = folder.path().join("base.kld");
    let result = save_logits(&evaluator, &tokens, &windows, &base, |_| ControlFlow::Break(())).unwrap();
    assert_eq!(result.chunks.len(), 1);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the model");
}

#[test]
fn endings_are_scored_as_if_each_came_alone() {
    let fixture = Fixture::new();
    // The last is longer than what a recurrent state can drop again.
    let endings = [
        "fell in the well.",
        "fell.",
        "told the tale to all the men in the hall, and the men all helped the hen tell the tale again, and \
         then the hen fell in the well.",
    ];
    let task = |context: &str| Task {
        context: context.to_owned(),
        endings: endings.iter().map(|ending| (*ending).to_owned()).collect(),
        label: 1,
    };
    let tasks: Vec<Task> = (0..20).map(|count| task(&"the hen ".repeat(count % 7 + 1))).collect();
    let mut done = 0;
    let result = multiple_choice(&fixture.evaluator, &tasks, |now| {
        done = now;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!((done, result.tasks), (20, 20));
    for (task, score) in tasks.iter().zip(&result.scores) {
        let context = fixture.evaluator.tokenize(&task.context).unwrap();
        let sequences: Vec<Vec<u32>> = (task.endings.iter())
            .map(|ending| fixture.evaluator.tokenize(&format!("{} {ending}", task.context)).unwrap())
            .collect();
        let same = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let shared = sequences.iter().map(|sequence| same(&sequences[0], sequence)).min().unwrap();
        let begin = same(&context, &sequences[0]).min(shared);
        for (index, sequence) in sequences.iter().enumerate() {
            let log_probs = fixture.log_probs(sequence);
            let total: f64 = log_probs[begin - 1..].iter().sum();
            assert!((score.log_probs[index] - total).abs() < 1e-4, "{} {total}", score.log_probs[index]);
            let characters = task.endings[index].chars().count() as f64;
            assert!((score.by_character[index] - total / characters).abs() < 1e-5);
            let own = &log_probs[shared - 1..];
            let mean = own.iter().sum::<f64>() / own.len() as f64;
            assert!((score.by_token[index] - mean).abs() < 1e-5, "{} {mean}", score.by_token[index]);
        }
    }
    assert_eq!(result.acc.share.value, 1.0, "the shortest ending is the likeliest of a random model");
    assert!(result.acc.share.error == 0.0 && result.acc.low > 0.8 && result.acc.high > 0.999);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let Fixture { folder, evaluator, .. } = Fixture::new();
    let run =
        |tokens: &[u32], windows| perplexity(&evaluator, tokens, &windows, |_| GO).unwrap_err().to_string();
    assert!(run(&[1, 2, 3], Windows::default()).contains("3 tokens, but 512 are needed"));
    assert!(run(&[1, 2, 3], Windows { ctx: 1, ..Windows::default() }).starts_with("ctx:"));
    let long = vec![1; 4096];
    let error = run(&long, Windows { ctx: 2048, ..Windows::default() });
    assert!(error.contains("trained for"), "{error}");
    let missing = folder.path().join("no/such/folder/base.kld");
    let windows = Windows { ctx: 8, ..Windows::default() };
    let error = save_logits(&evaluator, &long, &windows, &missing, |_| GO).unwrap_err().to_string();
    assert!(error.contains("base.kld cannot be written"), "{error}");
    let task = Task { context: String::new(), endings: vec!["all".into(), "men".into()], label: 0 };
    let scored = multiple_choice(&evaluator, &[task], |_| GO);
    assert!(scored.is_ok(), "the space before both endings is context enough");
}

#[test]
fn only_models_of_one_vocabulary_are_compared() {
    let Fixture { folder, evaluator, .. } = Fixture::new();
    let base = folder.path().join("base.kld");
    let mut bytes = b"_logits_".to_vec();
    // One window of 4 tokens over 2 ids: one row of 4 + 2 u16.
    for value in [4_i32, 2, 1, 0, 1, 0, 1] {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes.extend_from_slice(&[0; 12]);
    std::fs::write(&base, bytes).unwrap();
    let error = kl_divergence(&evaluator, &base, None, |_| GO).unwrap_err().to_string();
    assert!(error.contains("a vocabulary of 2, the model's has 265"), "{error}");
}
