//! Bundled models with their matrices shared out among cards, where there are two (or what stands in for them,
//! `tools/emulator` with CUDA_EMULATOR_DEVICES=2): what a program asks for by names and gets as text.

use std::path::{Path, PathBuf};

use gruff::floors::convert::quantize::{Preset, QuantizeOptions, quantize};
use gruff::floors::gguf::Gguf;
use gruff::floors::kernels::{Collective, cuda};
use gruff::{AutoModelForCausalLM, Dtype, GenerationConfig, Pretrained, SplitMode};

const DENSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-9m-Q4_K_M.gguf");
const MOE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-moe-Q4_K_M.gguf");

fn shared(file: impl AsRef<Path>) -> Pretrained<AutoModelForCausalLM> {
    AutoModelForCausalLM::from_pretrained(file.as_ref().to_string_lossy()).split_mode(SplitMode::Tensor)
}

fn refused(from: Pretrained<AutoModelForCausalLM>, words: &[&str]) {
    let message = from.load().err().expect("it cannot be placed").to_string();
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
}

#[test]
fn what_does_not_go_with_it_is_refused() {
    refused(shared(DENSE).device("cpu"), &["--split-mode", "--device auto"]);
    refused(shared(DENSE).device("cuda,cpu"), &["cards alone", "cuda,cpu"]);
    refused(shared(DENSE).device_map([("", "cpu")]), &["device_map", "tensor"]);
    let Ok(cards) = cuda::cards() else {
        refused(shared(DENSE), &["no card"]);
        return;
    };
    refused(shared(DENSE).device("cuda"), &["one card", "cuda:0,cuda:1"]);
    if cards.len() > 1 {
        refused(shared(DENSE).device("cuda:0,cuda:1").gpu_layers(2), &["--gpu-layers", "tensor"]);
        refused(shared(DENSE).device("cuda:0,cuda:1").cpu_moe(1), &["--n-cpu-moe", "tensor"]);
        refused(shared(DENSE).device("cuda:0,cuda:1"), &["--split-mode layer"]);
    }
}

/// The model in blocks of 32 values: the parts of its heads and experts are whole blocks then.
fn in_small_blocks(file: &str, folder: &Path) -> PathBuf {
    let path = folder.join("small-blocks.gguf");
    let options =
        QuantizeOptions { allow_requantize: true, overwrite: true, ..QuantizeOptions::new(Preset::Q8_0) };
    quantize(&Gguf::open(file).unwrap(), &path, &options, &()).unwrap();
    path
}

#[test]
fn cards_that_share_a_model_give_its_text() {
    let emulated = std::env::var_os("CUDA_EMULATOR_DEVICES").is_some();
    let together = emulated || Collective::library().is_ok();
    if !together || cuda::cards().map_or(0, |cards| cards.len()) < 2 {
        return;
    }
    let config =
        GenerationConfig { max_new_tokens: Some(8), temperature: Some(0.0), ..GenerationConfig::default() };
    let folder = tempfile::tempdir().unwrap();
    let file = in_small_blocks(MOE, folder.path());
    let exact = AutoModelForCausalLM::from_pretrained(file.to_string_lossy());
    let exact = exact.dtype(Dtype::F32).device("cpu").load().unwrap();
    let model = shared(&file).dtype(Dtype::F32).device("cuda:0,cuda:1").load().unwrap();
    let told = model.devices();
    assert!(told.contains("tensor parallel: cuda:0") && told.contains("2 cards"), "{told}");
    let plan = model.memory().unwrap();
    let [first, second] = plan.devices.as_slice() else { panic!("{plan}") };
    assert!(first.weights == second.weights && first.kv == second.kv, "{plan}");
    assert!(first.weights < exact.memory().unwrap().weights, "{plan}");

    // Two prompts together, and one of them alone.
    let prompts = vec![(40..57).collect::<Vec<u32>>(), vec![70, 71, 72]];
    let text = |model: &AutoModelForCausalLM, prompts: &[Vec<u32>]| {
        model.generate(prompts.to_vec(), &config).unwrap().sequences
    };
    let together = text(&model, &prompts);
    assert_eq!(together, text(&exact, &prompts));
    assert_eq!(together[1..], text(&model, &prompts[1..]));
}
