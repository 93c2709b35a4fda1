//! Where the parts of a model go by the names of devices.

use gruff::floors::kernels::cuda;
use gruff::{AutoModelForCausalLM, Dtype, GenerationConfig, LoadOptions, Pretrained, SplitMode};

fn bundled() -> Pretrained<AutoModelForCausalLM> {
    AutoModelForCausalLM::from_pretrained(DENSE).dtype(Dtype::F32)
}

fn refused(from: Pretrained<AutoModelForCausalLM>, words: &[&str]) {
    let message = from.load().err().expect("it cannot be placed").to_string();
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
}

const DENSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-9m-Q4_K_M.gguf");
const MOE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-moe-Q4_K_M.gguf");

#[test]
fn a_model_is_placed_module_by_module() {
    let layer =
        [("", "cpu"), ("model.layers.1", "reference"), ("model.norm", "cpu"), ("lm_head", "reference")];
    let experts =
        [("", "cpu"), ("model.layers.1.mlp.experts", "reference"), ("lm_head", "cpu"), ("model", "cpu")];
    for (file, map, words) in [(DENSE, layer, "layers 1, head"), (MOE, experts, "experts of layers 1")] {
        let load = || AutoModelForCausalLM::from_pretrained(file).dtype(Dtype::F32);
        let split = load().device_map(map).load().unwrap();
        assert_eq!(split.model().devices().len(), 2);
        let told = split.devices();
        assert!(told.contains(words) && told.contains("device_map"), "{told}");
        let plan = split.memory().unwrap();
        assert_eq!(plan.devices.len(), 2, "{plan}");
        assert!(plan.devices.iter().all(|device| device.weights > 0 && device.available.is_some()), "{plan}");

        let config = GenerationConfig {
            max_new_tokens: Some(8),
            temperature: Some(0.0),
            ..GenerationConfig::default()
        };
        let prompts = vec![(40..57).collect::<Vec<u32>>(), vec![70, 71, 72]];
        let whole = load().device("cpu").load().unwrap();
        let [expected, found] =
            [whole, split].map(|model| model.generate(prompts.clone(), &config).unwrap().sequences);
        assert_eq!(found, expected, "{file}");
    }
}

#[test]
fn what_cannot_be_placed_is_refused() {
    refused(
        bundled().device_map([("", "cpu"), ("model.layers.0.self_attn", "cpu")]),
        &["self_attn", "model.layers.N"],
    );
    refused(
        bundled().device_map([("", "cpu"), ("model.layers.999", "cpu")]),
        &["model.layers.999", "N below"],
    );
    refused(bundled().device_map([("model.layers", "cpu")]), &["nothing is said of lm_head"]);
    refused(bundled().device_map([("", "tpu")]), &["no device \"tpu\"", "cuda:0,cuda:1"]);
    refused(bundled().device("cpu,tpu"), &["no device \"tpu\""]);
    refused(bundled().device("cpu").gpu_layers(3), &["--gpu-layers", "cuda,cpu"]);
}

#[test]
fn deterministic_answers_do_not_depend_on_free_memory_or_the_clock() {
    for free in ["auto", "cuda,cpu"] {
        refused(
            bundled().device(free).deterministic(true),
            &["deterministic", free, "free memory", "--gpu-layers"],
        );
    }
    refused(
        bundled().device("auto").split_mode(SplitMode::Tensor).deterministic(true),
        &["deterministic", "number of cards", "cuda:0,cuda:1"],
    );
    // What is said of the CPU is the same at any time; so is a map.
    assert!(bundled().gpu_layers(0).device("auto").deterministic(true).load().is_ok());
    assert!(bundled().device_map([("", "cpu")]).deterministic(true).load().is_ok());

    let config = |max_time| GenerationConfig {
        max_new_tokens: Some(6),
        temperature: Some(1.0),
        max_time,
        ..GenerationConfig::default()
    };
    let prompt = || (40..57).collect::<Vec<u32>>();
    let [first, second] = [1, 2].map(|threads| {
        let model = bundled().device("cpu").threads(threads).deterministic(true).load().unwrap();
        let told = model.generate(prompt(), &config(Some(9.0))).unwrap_err().to_string();
        assert!(told.contains("max_time") && told.contains("deterministic"), "{told}");
        // Alone, and beside others.
        let alone = model.generate(prompt(), &config(None)).unwrap().sequences.remove(0);
        let beside = vec![prompt(), vec![70, 71, 72], vec![9; 40]];
        assert_eq!(model.generate(beside, &config(None)).unwrap().sequences[0], alone);
        alone
    });
    assert_eq!(first, second);
    assert!(bundled().device("cpu").load().unwrap().generate(prompt(), &config(Some(9.0))).is_ok());
}

#[test]
fn without_a_card_auto_is_the_cpu_and_says_why() {
    let Err(fault) = cuda::cards() else { return };
    let model = bundled().load().unwrap();
    assert!(model.device().name().starts_with("cpu"));
    assert!(model.devices().contains(&fault.to_string()), "{}", model.devices());
    assert!(bundled().gpu_layers(0).load().is_ok(), "no layer on cards is what there is");
    refused(bundled().gpu_layers(3), &["no card", &fault.to_string()]);
    refused(bundled().cpu_moe(1), &["no card", "--n-cpu-moe"]);
    let shares = LoadOptions { tensor_split: vec![1.0], ..LoadOptions::default() };
    refused(bundled().options(shares), &["no card", "--tensor-split"]);
}
