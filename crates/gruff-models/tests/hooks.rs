//! Functions that see or replace module outputs.

mod common;

use std::sync::{Arc, Mutex};

use common::{ARCHITECTURES, File, cpu, ids, logits};
use gruff_blocks::BlockType;
use gruff_kernels::{Activations, DType, KvDtype};

#[test]
fn looking_everywhere_changes_no_bit() {
    for architecture in ARCHITECTURES {
        let model = File::new(architecture, BlockType::Q8_0).load(&cpu(Activations::Int8));
        let ids = ids(1, 33);
        let plain = logits(&*model, KvDtype::F16, &ids);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let names = seen.clone();
        let guard = model
            .hooks()
            .on("*", move |context, output| {
                let finite = match output.dtype() {
                    DType::I32 => output.to_vec_i32()?.iter().all(|id| *id >= 0),
                    _ => output.to_vec_f32()?.iter().all(|value| value.is_finite()),
                };
                names.lock().expect("not poisoned").push((context.module.to_owned(), context.layer, finite));
                Ok(None)
            })
            .expect("known names");
        assert!(logits(&*model, KvDtype::F16, &ids) == plain, "{architecture}");
        drop(guard);
        assert!(logits(&*model, KvDtype::F16, &ids) == plain, "{architecture}");

        let seen = seen.lock().expect("not poisoned");
        let mixer = if architecture.starts_with("qwen35") { "linear_attn" } else { "self_attn" };
        for module in [
            "model.embed_tokens",
            "model.layers.0.input_layernorm",
            &format!("model.layers.0.{mixer}"),
            "model.layers.0.post_attention_layernorm",
            "model.layers.0.mlp",
            "model.layers.0",
            "model.norm",
            "lm_head",
        ] {
            let layer = module.contains("layers.0").then_some(0);
            let times = seen.iter().filter(|seen| **seen == (module.to_owned(), layer, true)).count();
            assert_eq!(times, 1, "{architecture}: {module}");
        }
    }
}

#[test]
fn a_replacement_takes_the_outputs_place() {
    let model = File::new("qwen3", BlockType::F32).load(&cpu(Activations::F32));
    let ids = ids(2, 10);
    let plain = logits(&*model, KvDtype::F32, &ids);
    for module in
        ["model.embed_tokens", "model.layers.1", "model.layers.*.self_attn", "*.mlp.up_proj", "lm_head"]
    {
        let zeros = |_: &gruff_models::HookContext, output: &gruff_kernels::Tensor| {
            Ok(Some(output.device().zeros(DType::F32, output.shape())?))
        };
        let guard = model.hooks().on(module, zeros).expect("known names");
        let replaced = logits(&*model, KvDtype::F32, &ids);
        assert!(replaced != plain, "{module}");
        if module == "lm_head" {
            assert!(replaced.iter().flatten().all(|logit| *logit == 0.0));
        }
        drop(guard);
        assert!(logits(&*model, KvDtype::F32, &ids) == plain, "{module} left a trace");
    }
}

#[test]
fn a_replacement_stays_the_hooks_own() {
    let model = File::new("qwen3moe", BlockType::F32).load(&cpu(Activations::F32));
    let ids = ids(4, 10);
    for module in
        ["model.embed_tokens", "model.layers.1", "*.self_attn.q_norm", "*.self_attn.k_proj", "*.experts"]
    {
        let kept = Arc::new(Mutex::new(None));
        let slot = kept.clone();
        let guard = model
            .hooks()
            .on(module, move |_, output| {
                let ones = output.device().tensor_f32(&vec![1.0; output.len()], output.shape())?;
                *slot.lock().expect("not poisoned") = Some(ones.clone());
                Ok(Some(ones))
            })
            .expect("known names");
        logits(&*model, KvDtype::F32, &ids);
        drop(guard);
        let kept = kept.lock().expect("not poisoned").take().expect("the hook was called");
        assert!(kept.to_vec_f32().expect("f32").iter().all(|value| *value == 1.0), "{module}");
    }
}

#[test]
fn a_replaced_mixer_equals_a_model_without_it() {
    let file = File::new("llama", BlockType::F32);
    let mut without = file.clone();
    for layer in 0..4 {
        without.tensor(&format!("blk.{layer}.attn_output.weight")).values.fill(0.0);
    }
    let device = cpu(Activations::F32);
    let model = file.load(&device);
    let ids = ids(3, 10);
    let _guard = model
        .hooks()
        .on("model.layers.*.self_attn", |_, output| {
            Ok(Some(output.device().zeros(DType::F32, output.shape())?))
        })
        .expect("known names");
    assert!(logits(&*model, KvDtype::F32, &ids) == logits(&*without.load(&device), KvDtype::F32, &ids));
}

#[test]
fn faults_of_hooks_are_told() {
    let model = File::new("llama", BlockType::F32).load(&cpu(Activations::F32));
    let run = || {
        let mut caches = common::caches(&*model, KvDtype::F32, 1, 8, 0);
        let part = gruff_kernels::StepSequence { len: 2, past: 0, slot: 0, pages: vec![0] };
        let step = gruff_kernels::Step::text(vec![1, 2], vec![part]).expect("sound");
        model.forward(&step, &mut caches).expect_err("refused").to_string()
    };
    let guard =
        model.hooks().on("model.layers.2.mlp", |_, _| Err("no such concept".into())).expect("known names");
    assert_eq!(run(), "hook on model.layers.2.mlp: no such concept");
    drop(guard);
    let _guard =
        model.hooks().on("model.norm", |_, output| Ok(Some(output.narrow(1, 0, 8)?))).expect("known names");
    let error = run();
    assert!(error.contains("hook on model.norm") && error.contains("[1, 8]"), "{error}");
}

/// Tensors whose inputs were seen, how often, with the shape of the input and of the experts' ids.
type Seen = Vec<(String, Vec<usize>, Option<(Vec<usize>, usize)>)>;

fn inputs_seen(file: &File, ids: &[u32]) -> Seen {
    let model = file.load(&cpu(Activations::Int8));
    let plain = logits(&*model, KvDtype::F16, ids);
    let seen = Arc::new(Mutex::new(Seen::new()));
    let (kept, names) = (seen.clone(), model.names());
    let guard = model
        .hooks()
        .on_input("*", move |context, x| {
            let tensor = format!("{}.weight", names.gguf(context.module).ok_or("not in the table")?);
            assert_eq!(context.layer.is_some(), tensor.starts_with("blk."), "{tensor}");
            assert!(x.to_vec_f32()?.iter().all(|value| value.is_finite()), "{tensor}");
            let experts = context.experts.map(|experts| (experts.ids.shape().to_vec(), experts.count));
            kept.lock().expect("not poisoned").push((tensor, x.shape().to_vec(), experts));
            Ok(())
        })
        .expect("known names");
    assert!(logits(&*model, KvDtype::F16, ids) == plain, "looking changes no bit");
    drop(guard);
    assert!(model.hooks().is_empty());
    std::mem::take(&mut *seen.lock().expect("not poisoned"))
}

#[test]
fn the_input_of_every_matrix_is_seen_once() {
    for architecture in ARCHITECTURES {
        let file = File::new(architecture, BlockType::Q8_0);
        let mut seen = inputs_seen(&file, &ids(1, 33));
        seen.sort();
        let tied = !file.tensors.iter().any(|tensor| tensor.name == "output.weight");
        let mut expected: Seen = file
            .tensors
            .iter()
            .filter(|tensor| tensor.shape.len() > 1 || tensor.name.ends_with("ffn_gate_inp_shexp.weight"))
            .filter(|tensor| !tensor.name.ends_with("ssm_conv1d.weight"))
            .filter(|tensor| tied || tensor.name != "token_embd.weight")
            .map(|tensor| {
                let routed = tensor.shape.len() == 3;
                let rows = if tensor.name.ends_with("down_exps.weight") { 66 } else { 33 };
                let experts = routed.then(|| (vec![33, 2], 4));
                (tensor.name.clone(), vec![rows, tensor.shape[0] as usize], experts)
            })
            .collect();
        expected.sort();
        assert_eq!(seen, expected, "{architecture}");
    }
}

#[test]
fn a_stack_of_matrices_has_one_input() {
    let mut file = File::new("llama", BlockType::Q8_0);
    file.fuse(
        &["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"],
        "blk.0.attn_qkv.weight",
    );
    let seen = inputs_seen(&file, &ids(2, 9));
    let times = |name: &str| seen.iter().filter(|(tensor, ..)| tensor == name).count();
    assert_eq!((times("blk.0.attn_qkv.weight"), times("blk.0.attn_q.weight")), (1, 0));
    assert_eq!(times("blk.1.attn_q.weight"), 1);
}

#[test]
fn an_input_is_the_norms_output() {
    let model = File::new("qwen3", BlockType::Q8_0).load(&cpu(Activations::Int8));
    let values = [Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new()))];
    let [output, input] = values.clone();
    let _norm = model
        .hooks()
        .on("model.layers.1.post_attention_layernorm", move |_, x| {
            *output.lock().expect("not poisoned") = x.to_vec_f32()?;
            Ok(None)
        })
        .expect("known names");
    let _up = model
        .hooks()
        .on_input("model.layers.1.mlp.up_proj", move |_, x| {
            *input.lock().expect("not poisoned") = x.to_vec_f32()?;
            Ok(())
        })
        .expect("known names");
    logits(&*model, KvDtype::F16, &ids(3, 10));
    let [output, input] = values.map(|values| std::mem::take(&mut *values.lock().expect("not poisoned")));
    assert!(!output.is_empty() && output == input);
    let _fault = model.hooks().on_input("*.down_proj", |_, _| Err("enough".into())).expect("known names");
    let mut caches = common::caches(&*model, KvDtype::F16, 1, 8, 0);
    let part = gruff_kernels::StepSequence { len: 2, past: 0, slot: 0, pages: vec![0] };
    let step = gruff_kernels::Step::text(vec![1, 2], vec![part]).expect("sound");
    let error = model.forward(&step, &mut caches).expect_err("refused").to_string();
    assert_eq!(error, "hook on model.layers.0.mlp.down_proj: enough");
}
