//! Adapters from GGUF files, as convert_lora_to_gguf writes them.

use std::path::Path;

use gruff::floors::blocks::BlockType;
use gruff::floors::engine::{Context, Engine, EngineOptions, Event, Request};
use gruff::floors::gguf::{Metadata, Writer};
use gruff::{AutoModelForCausalLM, Dtype, ForwardOptions, LogitRows, LoraScales, Weight};
use serde_json::json;

#[path = "../examples/tiny_random/model.rs"]
mod tiny;

const ALPHA: f32 = 6.0;
const RANK: u64 = 3;

fn values(seed: u64, count: u64) -> Vec<f32> {
    (0..count).map(|i| (((i * 7919 + seed * 104_729) % 1000) as f32 / 1000.0 - 0.5) * 0.3).collect()
}

/// (tensor, inputs, outputs): an attention's queries, a delta net's projection, a feed-forward.
const ADAPTED: [(&str, u64, u64); 3] =
    [("blk.1.attn_q.weight", 64, 256), ("blk.0.attn_qkv.weight", 64, 128), ("blk.2.ffn_down.weight", 96, 64)];

/// Their modules.
const MODULES: [&str; 3] = [
    "model.layers.1.self_attn.q_proj",
    "model.layers.0.linear_attn.in_proj_qkv",
    "model.layers.2.mlp.down_proj",
];

fn metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("general.type", "adapter");
    metadata.insert("general.architecture", "qwen35");
    metadata.insert("adapter.type", "lora");
    metadata.insert("adapter.lora.alpha", ALPHA);
    metadata
}

fn write(path: &Path, metadata: Metadata, tensors: &[(String, [u64; 2], Vec<f32>)]) {
    write_stacks(path, metadata, tensors)
}

fn write_stacks<S: AsRef<[u64]>>(path: &Path, metadata: Metadata, tensors: &[(String, S, Vec<f32>)]) {
    let mut writer = Writer::new(metadata);
    for (name, shape, _) in tensors {
        writer.add(name, shape.as_ref(), BlockType::F32).unwrap();
    }
    let mut file = writer.create(path).unwrap();
    for (name, _, values) in tensors {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        file.write(name, &bytes).unwrap();
    }
    file.finish().unwrap();
}

fn pairs() -> Vec<(String, [u64; 2], Vec<f32>)> {
    let pair = |(seed, (tensor, inputs, outputs)): (u64, &(&str, u64, u64))| {
        [
            (format!("{tensor}.lora_a"), [*inputs, RANK], values(2 * seed, inputs * RANK)),
            (format!("{tensor}.lora_b"), [RANK, *outputs], values(2 * seed + 1, outputs * RANK)),
        ]
    };
    (0..).zip(&ADAPTED).flat_map(pair).collect()
}

struct Tiny {
    folder: tempfile::TempDir,
    model: AutoModelForCausalLM,
}

impl Tiny {
    fn new(dtype: Dtype) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        tiny::write(&path).unwrap();
        let model =
            AutoModelForCausalLM::from_pretrained(path.to_str().unwrap()).dtype(dtype).load().unwrap();
        Self { folder, model }
    }

    fn adapter(&self, metadata: Metadata, tensors: &[(String, [u64; 2], Vec<f32>)]) -> std::path::PathBuf {
        let path = self.folder.path().join("adapter.gguf");
        write(&path, metadata, tensors);
        path
    }

    /// Logits of all tokens of two sequences.
    fn logits(&self, adapters: Option<Vec<LoraScales>>) -> [Vec<f32>; 2] {
        let mut cache = self.model.new_cache(2, 32).unwrap();
        let options = ForwardOptions { adapters, ..ForwardOptions::default() };
        let tokens = vec![vec![1, 2, 3, 4, 5], vec![9, 8, 7]];
        let output = self.model.forward_with(tokens, &mut cache, LogitRows::All, &options).unwrap();
        [0, 1].map(|sequence| output.all_logits(sequence).flatten().copied().collect())
    }
}

fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    let error: f64 = found.iter().zip(expected).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    error / expected.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>()
}

#[test]
fn an_adapter_file_is_a_change_of_the_weights() {
    let tiny = Tiny::new(Dtype::F32);
    let plain = tiny.logits(None);
    tiny.model.load_adapter("a", tiny.adapter(metadata(), &pairs())).unwrap();
    let beside = tiny.logits(None);
    assert!(nmse(&beside[0], &plain[0]) > 1e-4);
    tiny.model.unload_adapter("a").unwrap();
    for (seed, (module, (_, inputs, outputs))) in (0..).zip(MODULES.iter().zip(ADAPTED)) {
        let name = format!("{module}.weight");
        let (a, b) = (values(2 * seed, inputs * RANK), values(2 * seed + 1, outputs * RANK));
        let mut merged = tiny.model.weight(&name).unwrap().to_vec_f32().unwrap();
        let (inputs, rank) = (inputs as usize, RANK as usize);
        for (row, b) in merged.chunks_exact_mut(inputs).zip(b.chunks_exact(rank)) {
            for (b, a) in b.iter().zip(a.chunks_exact(inputs)) {
                row.iter_mut().zip(a).for_each(|(weight, a)| *weight += ALPHA / RANK as f32 * b * a);
            }
        }
        let shape = [outputs as usize, inputs];
        let merged = Weight::pack(tiny.model.device(), &merged, BlockType::F32, &shape).unwrap();
        tiny.model.set_weight(&name, merged).unwrap();
    }
    let merged = tiny.logits(None);
    assert!(nmse(&beside[0], &merged[0]) < 1e-9 && nmse(&beside[1], &merged[1]) < 1e-9);
}

#[test]
fn requests_have_scales_of_their_own() {
    let tiny = Tiny::new(Dtype::Auto);
    let plain = tiny.logits(None);
    let path = tiny.adapter(metadata(), &pairs());
    tiny.model.load_adapter("a", &path).unwrap();
    tiny.model.load_adapter("b", &path).unwrap();
    let scales = |pairs: &[(&str, f32)]| -> LoraScales {
        pairs.iter().map(|(name, scale)| ((*name).to_owned(), *scale)).collect()
    };
    let mixed = tiny.logits(Some(vec![LoraScales::new(), scales(&[("a", 0.25), ("b", 0.75)])]));
    assert!(mixed[0] == plain[0] && mixed[1] != plain[1]);
    tiny.model.set_adapter_scale("a", 0.25).unwrap();
    tiny.model.set_adapter_scale("b", 0.75).unwrap();
    let both = tiny.logits(None);
    assert!(both[1] == mixed[1] && both[0] != plain[0]);
    assert_eq!(tiny.model.adapters(), scales(&[("a", 0.25), ("b", 0.75)]));
}

#[test]
fn generate_sees_adapters_come_and_go() {
    let tiny = Tiny::new(Dtype::Auto);
    let config = gruff::GenerationConfig { max_new_tokens: Some(8), ..Default::default() };
    let generate = || tiny.model.generate(vec![1, 2, 3, 4], &config).unwrap().sequences;
    let plain = generate();
    tiny.model.load_adapter("a", tiny.adapter(metadata(), &pairs())).unwrap();
    tiny.model.set_adapter_scale("a", 8.0).unwrap();
    assert_ne!(generate(), plain, "what the caches hold was made without it");
    tiny.model.unload_adapter("a").unwrap();
    assert_eq!(generate(), plain);
}

#[test]
fn prompts_of_one_call_have_scales_of_their_own() {
    let tiny = Tiny::new(Dtype::Auto);
    let prompt: Vec<u32> = (0..70).map(|i| i * 3 % 200).collect();
    let config = |scale: Option<f32>| gruff::GenerationConfig {
        max_new_tokens: Some(8),
        adapters: scale.map(|scale| LoraScales::from([("a".to_owned(), scale)])),
        ..Default::default()
    };
    let ids = |config| tiny.model.generate(prompt.clone(), &config).unwrap();
    let plain = ids(config(None)).sequences;
    tiny.model.load_adapter("a", tiny.adapter(metadata(), &pairs())).unwrap();
    tiny.model.set_adapter_scale("a", 8.0).unwrap();
    let on = ids(config(None)).sequences;
    assert_ne!(on, plain);
    // What is parked was computed with other scales, and is of no use.
    let off = ids(config(Some(0.0)));
    assert_eq!((&off.sequences, off.usage[0].cached_tokens), (&plain, 0));
    let same = ids(config(Some(8.0)));
    assert_eq!((&same.sequences, same.usage[0].cached_tokens), (&on, 0));
    assert_eq!(ids(config(Some(8.0))).sequences, on);
    let missing = gruff::GenerationConfig {
        adapters: Some(LoraScales::from([("b".to_owned(), 1.0)])),
        ..Default::default()
    };
    let error = tiny.model.generate(prompt.clone(), &missing).unwrap_err().to_string();
    assert!(error.contains("adapters") && error.contains("\"b\""), "{error}");

    // Two requests with different scales share a step.
    let mut engine = Engine::new(
        tiny.model.model().clone(),
        EngineOptions { context: Context::Tokens(128), max_sequences: 2, ..EngineOptions::default() },
    )
    .unwrap();
    let mut answers = std::collections::BTreeMap::new();
    for scale in [0.0, 8.0] {
        let adapters = Some(LoraScales::from([("a".to_owned(), scale)]));
        let request = Request { max_new_tokens: Some(8), adapters, ..Request::new(prompt.clone()) };
        answers.insert(engine.submit(request).unwrap(), prompt.clone());
    }
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Token { request, id, .. } = event {
                answers.get_mut(&request).unwrap().push(id);
            }
        }
    }
    assert_eq!(answers.into_values().collect::<Vec<_>>(), [plain[0].clone(), on[0].clone()]);
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let tiny = Tiny::new(Dtype::Auto);
    let refuse =
        |change: &dyn Fn(&mut Metadata), tensors: &[(String, [u64; 2], Vec<f32>)], expected: &str| {
            let mut metadata = metadata();
            change(&mut metadata);
            let path = tiny.adapter(metadata, tensors);
            let error = tiny.model.load_adapter("a", &path).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("adapter.gguf"), "{expected}: {error}");
        };
    let same = |_: &mut Metadata| {};
    refuse(&|metadata| drop(metadata.insert("general.type", "model")), &pairs(), "not an adapter");
    refuse(&|metadata| drop(metadata.insert("adapter.type", "control_vector")), &pairs(), "control_vector");
    refuse(&|metadata| drop(metadata.insert("general.architecture", "llama")), &pairs(), "llama model");
    refuse(
        &|metadata| drop(metadata.insert("adapter.alora.invocation_tokens", vec![1_u32, 2])),
        &pairs(),
        "activated",
    );
    let one =
        |name: &str, shape: [u64; 2]| (name.to_owned(), shape, vec![0.1; (shape[0] * shape[1]) as usize]);
    refuse(&same, &[one("blk.1.attn_q.weight", [64, 256])], "no part of a LoRA");
    refuse(&same, &[one("blk.9.attn_q.weight.lora_a", [64, 2])], "does not have");
    refuse(&same, &[one("blk.1.attn_q.weight.lora_a", [64, 2])], "only one of the two");
    let pair = |a: [u64; 2], b: [u64; 2]| {
        [one("blk.1.attn_q.weight.lora_a", a), one("blk.1.attn_q.weight.lora_b", b)]
    };
    refuse(&same, &pair([64, 2], [3, 256]), "ranks differ");
    refuse(&same, &pair([32, 2], [2, 256]), "another base model");
    let mut wild = pair([64, 2], [2, 256]);
    wild[0].2[5] = f32::NAN;
    refuse(&same, &wild, "not numbers");
    assert!(tiny.model.model().adapters().scales().is_empty());
}

/// What PEFT saves: names, shapes outermost first, values.
fn write_peft(folder: &Path, config: &serde_json::Value, tensors: &[(String, [usize; 2], Vec<f32>)]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend([header, data].concat());
    std::fs::write(folder.join("adapter_model.safetensors"), bytes).unwrap();
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
}

#[test]
fn tables_and_experts_are_adapted_from_files_of_both_kinds() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-moe-Q4_K_M.gguf");
    let model = AutoModelForCausalLM::from_pretrained(path).dtype(Dtype::F32).load().unwrap();
    let (table, stack) = ("model.embed_tokens.weight", "model.layers.1.mlp.experts.up_proj.weight");
    let (table_values, stack_values) = (model.weight(table).unwrap(), model.weight(stack).unwrap());
    let [vocabulary, hidden] = table_values.shape()[..] else { panic!("a table") };
    let [experts, outputs, inputs] = stack_values.shape()[..] else { panic!("a stack") };
    let rank = RANK as usize;
    let logits = || {
        let mut cache = model.new_cache(1, 64).unwrap();
        let tokens: Vec<u32> = (0..40).map(|i| i * 97 % vocabulary as u32).collect();
        model
            .forward_with(tokens, &mut cache, LogitRows::All, &ForwardOptions::default())
            .unwrap()
            .logits(0)
            .to_vec()
    };
    let plain = logits();
    let of = |seed: u64, count: usize| values(seed, count as u64);
    // A of the table by columns, as PEFT has it; the first expert is left alone.
    let (table_a, table_b) = (of(1, rank * vocabulary), of(2, hidden * rank));
    let expert = |index: usize| -> [Vec<f32>; 2] {
        let seed = 10 + 2 * index as u64;
        let [a, b] = [of(seed, rank * inputs), of(seed + 1, outputs * rank)];
        if index == 0 { [vec![0.0; a.len()], vec![0.0; b.len()]] } else { [a, b] }
    };

    let turned = (0..vocabulary).flat_map(|token| (0..rank).map(move |r| (token, r)));
    let turned: Vec<f32> = turned.map(|(token, r)| table_a[r * vocabulary + token]).collect();
    let all =
        |side: usize| -> Vec<f32> { (0..experts).flat_map(|index| expert(index)[side].clone()).collect() };
    let [v, h, r, e, o, i] = [vocabulary, hidden, rank, experts, outputs, inputs].map(|size| size as u64);
    let mut meta = metadata();
    meta.insert("general.architecture", model.model().config().architecture.as_str());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.gguf");
    write_stacks(
        &file,
        meta,
        &[
            ("token_embd.weight.lora_a".to_owned(), vec![r, v], turned),
            ("token_embd.weight.lora_b".to_owned(), vec![r, h], table_b.clone()),
            ("blk.1.ffn_up_exps.weight.lora_a".to_owned(), vec![i, r, e], all(0)),
            ("blk.1.ffn_up_exps.weight.lora_b".to_owned(), vec![r, o, e], all(1)),
        ],
    );
    model.load_adapter("gguf", &file).unwrap();
    let beside = logits();
    model.unload_adapter("gguf").unwrap();
    assert!(nmse(&beside, &plain) > 1e-5 && logits() == plain);

    let mut tensors = vec![
        (
            "base_model.model.model.embed_tokens.lora_embedding_A".to_owned(),
            [rank, vocabulary],
            table_a.clone(),
        ),
        ("base_model.model.model.embed_tokens.lora_embedding_B".to_owned(), [hidden, rank], table_b.clone()),
    ];
    for index in 1..experts {
        let name =
            |side| format!("base_model.model.model.layers.1.mlp.experts.{index}.up_proj.lora_{side}.weight");
        let [a, b] = expert(index);
        tensors.extend([(name("A"), [rank, inputs], a), (name("B"), [outputs, rank], b)]);
    }
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA});
    write_peft(folder.path(), &config, &tensors);
    model.load_adapter("peft", folder.path()).unwrap();
    assert!(logits() == beside, "both say the same");
    model.unload_adapter("peft").unwrap();

    // The same, merged.
    let factor = ALPHA / RANK as f32;
    let product = |b: &[f32], a: &dyn Fn(usize) -> f32| -> f32 {
        b.iter().enumerate().map(|(r, b)| factor * b * a(r)).sum()
    };
    let mut merged = table_values.to_vec_f32().unwrap();
    for (at, value) in merged.iter_mut().enumerate() {
        let (token, row) = (at / hidden, at % hidden);
        *value += product(&table_b[row * rank..][..rank], &|r| table_a[r * vocabulary + token]);
    }
    // A head that is the table keeps its own: an adapter stands beside one module.
    let head = model.weight("lm_head.weight").is_ok();
    let merge = |name: &str, values: &[f32], shape: &[usize]| {
        model.set_weight(name, Weight::pack(model.device(), values, BlockType::F32, shape).unwrap()).unwrap();
    };
    let mut experts_merged = stack_values.to_vec_f32().unwrap();
    for (index, values) in experts_merged.chunks_exact_mut(outputs * inputs).enumerate() {
        let [a, b] = expert(index);
        for (at, value) in values.iter_mut().enumerate() {
            let (row, column) = (at / inputs, at % inputs);
            *value += product(&b[row * rank..][..rank], &|r| a[r * inputs + column]);
        }
    }
    merge(stack, &experts_merged, &[experts, outputs, inputs]);
    if head {
        merge(table, &merged, &[vocabulary, hidden]);
        assert!(nmse(&logits(), &beside) < 1e-6);
    } else {
        tensors.truncate(2);
        write_peft(folder.path(), &config, &tensors);
        model.load_adapter("table", folder.path()).unwrap();
        assert!(nmse(&logits(), &beside) < 1e-6);
    }

    // What cannot be applied is named.
    let refused = |config: serde_json::Value, tensors: &[(String, [usize; 2], Vec<f32>)], expected: &str| {
        write_peft(folder.path(), &config, tensors);
        let error = model.load_adapter("x", folder.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    };
    let with = |field: &str, value: serde_json::Value| {
        let mut config = config.clone();
        config[field] = value;
        config
    };
    refused(with("target_parameters", json!(["mlp.experts.gate_up_proj"])), &tensors, "target_parameters");
    refused(with("use_dora", json!(true)), &tensors, "use_dora");
    let one = |name: &str, shape: [usize; 2]| {
        (format!("base_model.model.model.{name}"), shape, vec![0.1; shape[0] * shape[1]])
    };
    let expert = |number: usize, a: [usize; 2], b: [usize; 2]| {
        ["A", "B"].map(|side| {
            let name = format!("layers.1.mlp.experts.{number}.up_proj.lora_{side}.weight");
            one(&name, if side == "A" { a } else { b })
        })
    };
    refused(config.clone(), &expert(experts, [2, inputs], [outputs, 2]), "no number");
    refused(config.clone(), &expert(0, [2, inputs], [outputs, 3]), "ranks differ");
    refused(config.clone(), &expert(0, [2, inputs + 1], [outputs, 2]), "another base model");
    let [first, _] = expert(0, [2, inputs], [outputs, 2]);
    refused(config.clone(), &[first], "only one of the two");
    let whole = ["A", "B"].map(|side| one(&format!("layers.1.mlp.experts.lora_{side}.weight"), [2, 2]));
    refused(config.clone(), &whole, "as a whole");
}
