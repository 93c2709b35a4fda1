//! Files that contradict themselves: the error names the key or tensor.

mod common;

use common::{ARCHITECTURES, Entry, File, cpu};
use gruff_blocks::BlockType;
use gruff_gguf::Value;
use gruff_kernels::{Activations, Device, KvDtype};

type Edit = fn(&mut File);

/// The error's text.
fn refused(file: &File) -> String {
    match gruff_models::load(&file.build(), &Device::reference(Activations::F32)) {
        Ok(_) => panic!("the file was accepted"),
        Err(error) => error.to_string(),
    }
}

fn check(architecture: &str, cases: &[(Edit, &[&str])]) {
    for (number, (edit, fragments)) in cases.iter().enumerate() {
        let mut file = File::new(architecture, BlockType::F32);
        edit(&mut file);
        let message = refused(&file);
        for fragment in fragments.iter().chain(&["GGUF in memory"]) {
            assert!(message.contains(fragment), "{architecture} {number}: {message:?} lacks {fragment:?}");
        }
    }
}

#[test]
fn wrong_keys_are_named() {
    check(
        "llama",
        &[
            (|f| f.set("attention.head_count", 0_u32), &["llama.attention.head_count", "0"]),
            (
                |f| f.set("attention.head_count_kv", 3_u32),
                &["llama.attention.head_count_kv", "is 3", "4 query heads"],
            ),
            (|f| f.set("attention.head_count_kv", 0_u32), &["llama.attention.head_count_kv", "is 0"]),
            (
                |f| f.set("attention.head_count_kv", vec![2_i32; 3]),
                &["llama.attention.head_count_kv", "4 of them"],
            ),
            (|f| f.set("block_count", 5_u32), &["llama.block_count", "is 5", "4 blocks"]),
            (|f| f.set("block_count", 2_u32), &["llama.block_count", "is 2", "4 blocks"]),
            (|f| f.set("block_count", u32::MAX), &["llama.block_count"]),
            (|f| f.set("embedding_length", 1_u64 << 40), &["llama.embedding_length", "1099511627776"]),
            (|f| f.set("embedding_length", "wide"), &["llama.embedding_length", "a size"]),
            (|f| f.set("embedding_length", 128_u32), &["token_embd.weight", "[64, 96]", "[128, 96]"]),
            (|f| f.set("context_length", 0_u32), &["llama.context_length", "0"]),
            (
                |f| f.set("attention.layer_norm_rms_epsilon", f32::NAN),
                &["layer_norm_rms_epsilon", "NaN", "finite"],
            ),
            (|f| f.set("attention.layer_norm_rms_epsilon", 0.0_f32), &["layer_norm_rms_epsilon", "above 0"]),
            (
                |f| f.set("rope.dimension_count", 64_u32),
                &["llama.rope.dimension_count", "is 64", "32 dimensions"],
            ),
            (|f| f.set("rope.dimension_count", 7_u32), &["llama.rope.dimension_count", "is 7"]),
            (|f| f.set("rope.freq_base", f32::INFINITY), &["llama.rope.freq_base", "inf"]),
            (|f| f.set("rope.scaling.type", "longrope"), &["llama.rope.scaling.type", "longrope", "yarn"]),
            (|f| f.set("rope.scaling.factor", -2.0_f32), &["llama.rope.scaling.factor", "-2"]),
            (|f| f.set("feed_forward_length", 0_u32), &["llama.feed_forward_length", "0"]),
            (|f| f.set("vocab_size", 97_u32), &["llama.vocab_size", "is 97", "96 rows"]),
            (
                |f| drop(f.metadata.remove("llama.feed_forward_length")),
                &["llama.feed_forward_length", "missing"],
            ),
            (|f| drop(f.metadata.remove("llama.context_length")), &["llama.context_length", "missing"]),
            (
                |f| {
                    f.metadata.remove("llama.attention.key_length");
                    f.set("attention.head_count", 5_u32);
                    f.set("attention.head_count_kv", 5_u32);
                },
                &["llama.attention.head_count", "is 5", "64"],
            ),
        ],
    );
}

#[test]
fn wrong_keys_of_experts_and_recurrences_are_named() {
    check(
        "qwen35moe",
        &[
            (|f| f.set("expert_used_count", 5_u32), &["qwen35moe.expert_used_count", "is 5", "4 experts"]),
            (|f| f.set("expert_used_count", 0_u32), &["qwen35moe.expert_used_count", "0"]),
            (|f| f.set("expert_count", 3_u32), &["ffn_gate_exps.weight", "[64, 32, 4]", "[64, 32, 3]"]),
            (|f| f.set("expert_gating_func", 2_u32), &["qwen35moe.expert_gating_func", "softmax"]),
            (|f| f.set("ssm.group_count", 3_u32), &["qwen35moe.ssm.group_count", "is 3", "4 value heads"]),
            (|f| f.set("ssm.inner_size", 65_u32), &["qwen35moe.ssm.inner_size", "is 65"]),
            (|f| f.set("ssm.conv_kernel", 0_u32), &["qwen35moe.ssm.conv_kernel", "0"]),
            (|f| f.set("rope.dimension_sections", vec![9_i32, 9, 9, 0]), &["dimension_sections", "8 pairs"]),
            (
                |f| f.set("attention.recurrent_layers", vec![true; 3]),
                &["attention.recurrent_layers", "4 layers"],
            ),
            (|f| f.set("nextn_predict_layers", 4_u32), &["qwen35moe.nextn_predict_layers", "is 4"]),
        ],
    );
}

#[test]
fn wrong_tensors_are_named() {
    check(
        "llama",
        &[
            (
                |f| drop(f.take("blk.2.ffn_up.weight")),
                &["blk.2.ffn_up.weight", "similar", "blk.1.ffn_up.weight"],
            ),
            (|f| drop(f.take("output_norm.weight")), &["output_norm.weight"]),
            (|f| drop(f.take("token_embd.weight")), &["token_embd.weight"]),
            (
                |f| {
                    let tensor = f.tensor("blk.0.attn_k.weight");
                    tensor.shape = vec![32, 128];
                },
                &["blk.0.attn_k.weight", "[32, 128]", "[64, 64]"],
            ),
            (
                |f| {
                    let norm = f.tensor("blk.3.attn_norm.weight");
                    norm.shape = vec![63];
                    norm.values.pop();
                },
                &["blk.3.attn_norm.weight", "[63]", "[64]"],
            ),
            (|f| f.vector("blk.1.attn_q.bias", 5, 0.0), &["blk.1.attn_q.bias", "[5]", "[128]"]),
            (|f| f.vector("rope_freqs.weight", 5, 1.0), &["rope_freqs.weight", "16 pairs"]),
            (
                |f| f.push("rope_freqs.weight", &[16], BlockType::F32, vec![0.0; 16]),
                &["rope_freqs.weight", "0"],
            ),
            (|f| f.vector("blk.1.attn_q.scale", 3, 1.0), &["blk.1.attn_q.scale", "[3]", "[1]"]),
            (
                |f| f.push("blk.1.attn_q.scale", &[1], BlockType::F32, vec![f32::NAN]),
                &["blk.1.attn_q.scale", "NaN"],
            ),
        ],
    );
}

#[test]
fn other_files_are_told_apart() {
    let case = |edit: Edit, fragments: &[&str]| {
        let mut file = File::new("llama", BlockType::F32);
        edit(&mut file);
        let message = refused(&file);
        for fragment in fragments {
            assert!(message.contains(fragment), "{message:?} lacks {fragment:?}");
        }
    };
    case(
        |f| drop(f.metadata.insert("general.architecture", "mamba2")),
        &["\"mamba2\"", "qwen35moe", "gemma3"],
    );
    case(|f| drop(f.metadata.insert("general.architecture", "bert")), &["encoder"]);
    case(|f| drop(f.metadata.insert("general.architecture", "clip")), &["projector"]);
    case(|f| drop(f.metadata.insert("general.type", "adapter")), &["LoRA adapter"]);
    case(|f| drop(f.metadata.remove("general.architecture")), &["general.architecture", "missing"]);
    case(|f| f.set("attention.causal", false), &["encoder", "causal"]);
    case(|f| f.tensors.clear(), &["vocabulary"]);
}

#[test]
fn caches_of_another_model_are_refused() {
    let device = cpu(Activations::F32);
    let model = File::new("qwen35", BlockType::F32).load(&device);
    let other = File::new("llama", BlockType::F32).load(&device);
    let mut caches = common::caches(&*other, KvDtype::F32, 1, 8, 0);
    let part = gruff_kernels::StepSequence { len: 1, past: 0, slot: 0, pages: vec![0] };
    let step = gruff_kernels::Step::text(vec![1], vec![part]).expect("sound");
    let error = model.forward(&step, &mut caches).expect_err("refused").to_string();
    assert!(error.contains("layer 0") && error.contains("recurrent state"), "{error}");
}

#[test]
fn a_token_outside_the_vocabulary_is_refused() {
    let model = File::new("llama", BlockType::F32).load(&cpu(Activations::F32));
    let mut caches = common::caches(&*model, KvDtype::F32, 1, 8, 0);
    let part = gruff_kernels::StepSequence { len: 1, past: 0, slot: 0, pages: vec![0] };
    let step = gruff_kernels::Step::text(vec![96], vec![part]).expect("sound");
    let error = model.forward(&step, &mut caches).expect_err("refused").to_string();
    assert!(error.contains("96"), "{error}");
}

/// Values that keys do not expect.
fn odd_values() -> Vec<Value> {
    vec![
        0_u32.into(),
        1_u32.into(),
        2_u32.into(),
        31_u32.into(),
        (1_u32 << 24).into(),
        u32::MAX.into(),
        u64::MAX.into(),
        (-1_i32).into(),
        f32::NAN.into(),
        f32::INFINITY.into(),
        f32::MIN_POSITIVE.into(),
        1e30_f32.into(),
        (-2.5_f32).into(),
        true.into(),
        "".into(),
        "yarn".into(),
        Vec::<u32>::new().into(),
        vec![0_u32; 4].into(),
        vec![u32::MAX; 4].into(),
        vec![-1_i32; 7].into(),
        vec![f32::NAN; 3].into(),
        vec![true, false].into(),
    ]
}

#[test]
fn any_value_of_any_key_gives_a_model_or_an_error() {
    let device = cpu(Activations::F32);
    for architecture in ARCHITECTURES {
        let plain = File::new(architecture, BlockType::F32);
        let optional = [
            "attention.causal",
            "attention.recurrent_layers",
            "attention.scale",
            "attention.sliding_window",
            "attention.sliding_window_pattern",
            "attn_logit_softcapping",
            "expert_count",
            "expert_gating_func",
            "expert_weights_norm",
            "expert_weights_scale",
            "final_logit_softcapping",
            "nextn_predict_layers",
            "rope.dimension_count",
            "rope.freq_base",
            "rope.freq_base_swa",
            "rope.scale_linear",
            "rope.scaling.attn_factor",
            "rope.scaling.factor",
            "rope.scaling.original_context_length",
            "rope.scaling.type",
            "rope.scaling.yarn_attn_factor",
            "rope.scaling.yarn_beta_fast",
            "rope.scaling.yarn_log_multiplier",
            "vocab_size",
        ];
        let keys = plain.metadata.keys().map(str::to_owned);
        let optional = optional.iter().map(|key| format!("{architecture}.{key}"));
        for key in keys.chain(optional).filter(|key| !key.starts_with("general.")) {
            for value in odd_values() {
                let mut file = plain.clone();
                file.metadata.insert(&key, value);
                match gruff_models::load(&file.build(), &device) {
                    Ok(model) => drop(common::logits(&*model, KvDtype::F32, &[1, 2, 3])),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
    }
}

#[test]
fn every_tensor_that_is_missing_or_misshapen_is_named() {
    for architecture in ARCHITECTURES {
        let plain = File::new(architecture, BlockType::F32);
        for Entry { name, .. } in &plain.tensors {
            let mut missing = plain.clone();
            missing.take(name);
            // Without a head of its own the model uses the embedding table, without a bias none.
            if name != "output.weight"
                && !name.ends_with("_q.bias")
                && !name.ends_with("_k.bias")
                && !name.ends_with("_v.bias")
            {
                assert!(refused(&missing).contains(name.as_str()), "{architecture}: {name} missing");
            }
            let mut longer = plain.clone();
            let tensor = longer.tensor(name);
            let last = tensor.shape.len() - 1;
            let row = tensor.values.len() / tensor.shape[last] as usize;
            tensor.shape[last] += 1;
            tensor.values.extend(vec![0.5; row]);
            // The size of the vocabulary is that of the embedding table; the head then disagrees.
            let named = if name == "token_embd.weight" { "output.weight" } else { name };
            if name != "token_embd.weight" || architecture != "gemma3" {
                assert!(refused(&longer).contains(named), "{architecture}: {name} longer");
            }
        }
    }
}
