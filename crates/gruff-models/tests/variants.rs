//! The forms in which files store the same weights.

mod common;

use common::{File, cpu, ids, logits};
use gruff_blocks::BlockType;
use gruff_kernels::{Activations, KvDtype};
use gruff_models::fingerprint;

/// Both files give the same logits, bit for bit.
fn same(what: &str, one: &File, other: &File) {
    for activations in [Activations::F32, Activations::Int8] {
        let device = cpu(activations);
        let ids = ids(1, 20);
        let one = logits(&*one.load(&device), KvDtype::F32, &ids);
        let other = logits(&*other.load(&device), KvDtype::F32, &ids);
        assert!(one == other, "{what}");
    }
}

#[test]
fn fused_projections_equal_separate_ones() {
    for architecture in ["llama", "qwen2", "gemma3", "qwen35"] {
        let plain = File::new(architecture, BlockType::Q8_0);
        let mut fused = plain.clone();
        let parts = ["blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight"];
        fused.fuse(&parts, "blk.1.attn_qkv.weight");
        if architecture == "qwen2" {
            fused.fuse(
                &["blk.1.attn_q.bias", "blk.1.attn_k.bias", "blk.1.attn_v.bias"],
                "blk.1.attn_qkv.bias",
            );
        }
        same(architecture, &plain, &fused);
    }
}

#[test]
fn fused_experts_equal_separate_ones() {
    for architecture in ["qwen3moe", "qwen35moe"] {
        let plain = File::new(architecture, BlockType::Q8_0);
        let mut fused = plain.clone();
        let parts = ["blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"];
        fused.fuse(&parts, "blk.0.ffn_gate_up_exps.weight");
        same(architecture, &plain, &fused);
    }
}

#[test]
fn a_tied_head_is_the_embedding_table() {
    let mut tied = File::new("llama", BlockType::Q8_0);
    tied.take("output.weight");
    let mut copied = tied.clone();
    let table = tied.tensor("token_embd.weight").clone();
    copied.push("output.weight", &table.shape, table.block_type, table.values);
    same("tied", &tied, &copied);
}

#[test]
fn a_scale_beside_a_matrix_multiplies_it() {
    let plain = File::new("qwen35moe", BlockType::F32);
    let mut scaled = plain.clone();
    for (name, scale) in [("blk.1.attn_q", 4.0), ("blk.0.ssm_out", 0.5), ("output", 2.0)] {
        scaled.tensor(&format!("{name}.weight")).values.iter_mut().for_each(|value| *value /= scale);
        scaled.push(&format!("{name}.scale"), &[1], BlockType::F32, vec![scale]);
        scaled.push(&format!("{name}.input_scale"), &[1], BlockType::F32, vec![3.0]);
    }
    let scales = vec![2.0, 0.25, 1.0, 8.0];
    let down = scaled.tensor("blk.2.ffn_down_exps.weight");
    let expert = down.values.len() / 4;
    for (values, scale) in down.values.chunks_mut(expert).zip(&scales) {
        values.iter_mut().for_each(|value| *value /= scale);
    }
    scaled.push("blk.2.ffn_down_exps.scale", &[4], BlockType::F32, scales);
    same("scale", &plain, &scaled);
}

#[test]
fn recurrent_layers_may_be_listed() {
    let plain = File::new("qwen35", BlockType::F32);
    let mut listed = plain.clone();
    listed.metadata.remove("qwen35.full_attention_interval");
    listed.set("attention.recurrent_layers", vec![true, false, true, false]);
    same("list of truth values", &plain, &listed);
    listed.set("attention.recurrent_layers", vec![1_i32, 0, 1, 0]);
    same("list of integers", &plain, &listed);
}

#[test]
fn sizes_may_be_given_layer_by_layer() {
    let plain = File::new("qwen35", BlockType::F32);
    let mut listed = plain.clone();
    listed.set("attention.head_count_kv", vec![0_i32, 2, 0, 2]);
    listed.set("feed_forward_length", vec![96_i32; 4]);
    same("lists", &plain, &listed);
}

#[test]
fn a_block_for_multi_token_prediction_is_left_alone() {
    let plain = File::new("qwen35", BlockType::F32);
    let mut with = plain.clone();
    with.set("block_count", 5_u32);
    with.set("nextn_predict_layers", 1_u32);
    with.block("qwen35", 4, BlockType::F32);
    with.matrix("blk.4.nextn.eh_proj.weight", &[128, 64], BlockType::F32);
    same("multi-token prediction", &plain, &with);
}

#[test]
fn small_tensors_may_be_of_any_type() {
    let mut halves = File::new("qwen35", BlockType::F32);
    for tensor in halves.tensors.iter_mut().filter(|tensor| tensor.shape.len() == 1) {
        // Values that half precision keeps.
        tensor.values.iter_mut().for_each(|value| *value = (*value * 64.0).round() / 64.0);
    }
    let plain = halves.clone();
    for tensor in halves.tensors.iter_mut().filter(|tensor| tensor.shape.len() == 1) {
        tensor.block_type = BlockType::F16;
    }
    same("half-precision vectors", &plain, &halves);
}

#[test]
fn unused_tensors_do_no_harm() {
    let plain = File::new("llama", BlockType::F32);
    let mut with = plain.clone();
    with.matrix("cls.output.weight", &[64, 2], BlockType::F32);
    with.vector("blk.0.attn_rot_embd", 8, 0.0);
    same("leftovers", &plain, &with);
}

#[test]
fn what_changes_the_numbers_changes_the_fingerprint() {
    let device = cpu(Activations::F32);
    let of = |file: &File| fingerprint(&*file.load(&device)).unwrap();
    let plain = File::new("llama", BlockType::F32);
    assert_eq!(of(&plain), of(&plain));
    // No weight says so, but all that attention computes is another.
    let mut turned = plain.clone();
    turned.set("rope.freq_base", 20_000.0f32);
    assert_ne!(of(&turned), of(&plain));
    let mut changed = plain.clone();
    changed.tensor("blk.0.attn_norm.weight").values[3] += 0.5;
    assert_ne!(of(&changed), of(&plain));
}
