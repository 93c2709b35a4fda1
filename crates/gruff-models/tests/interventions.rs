//! Modules, weights and adapters put in the place of a model's own, and what a pass gives besides logits.

mod common;

use std::sync::{Arc, Mutex};

use common::{ARCHITECTURES, File, cpu, ids, logits, nmse};
use gruff_blocks::BlockType;
use gruff_kernels::{Activations, DType, KvDtype, PAGE_LEN, Step, StepSequence, Tensor};
use gruff_models::{
    AttnImplementation, Error, ForwardOptions, HookContext, HookError, Lora, LoraScales, Model, ModelOutput,
    ModuleKind, Weight,
};

const LAST: usize = 3;

/// A step with all logits of two sequences, and what `options` ask for.
fn forward(model: &dyn Model, options: &ForwardOptions) -> gruff_models::Result<ModelOutput> {
    let mut caches = common::caches(model, KvDtype::F32, 2, PAGE_LEN, 0);
    let part = |len, slot| StepSequence { len, past: 0, slot, pages: vec![slot as u32] };
    let tokens = [ids(1, 7), ids(2, 12)].concat();
    let step = Step::text(tokens, vec![part(7, 0), part(12, 1)]).expect("sound");
    let step = step.with_output_rows((0..19).collect()).expect("rows of the step");
    model.forward_with(&step, &mut caches, options)
}

fn plain(model: &dyn Model) -> Vec<f32> {
    values(&forward(model, &ForwardOptions::default()).expect("the model runs").logits)
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec_f32().expect("f32")
}

#[test]
fn modules_that_do_the_same_change_no_bit() {
    // The model's own weights, multiplied anew by the module that stands in for the matrix.
    for architecture in ARCHITECTURES {
        let device = cpu(Activations::Int8);
        let model = File::new(architecture, BlockType::Q8_0).load(&device);
        let before = plain(&*model);
        let guards: Vec<_> =
            ["model.layers.1.mlp.shared_expert.up_proj", "model.layers.1.mlp.up_proj", "lm_head"]
                .into_iter()
                .filter(|name| model.named_modules().iter().any(|info| info.name == *name))
                .map(|name| {
                    let weight = model
                        .weight(&format!("{name}.weight"))
                        .or_else(|_| model.weight("model.embed_tokens.weight"))
                        .expect("it is there");
                    let own = move |_: &HookContext, x: &Tensor| -> Result<Tensor, HookError> {
                        let Weight::Packed(weight) = &weight else { return Err("not packed".into()) };
                        let out = x.device().scratch(DType::F32, &[x.shape()[0], weight.tensor().rows()])?;
                        let x = gruff_kernels::Activation::new(x)?;
                        gruff_kernels::matmul::linear(&x, weight.tensor(), None, &out)?;
                        Ok(out)
                    };
                    model.replace(name, Arc::new(own)).expect("it is a matrix")
                })
                .collect();
        assert!(plain(&*model) == before, "{architecture}");
        drop(guards);
        assert!(plain(&*model) == before, "{architecture}");
    }
}

#[test]
fn every_replaceable_module_can_be_replaced() {
    for architecture in ["qwen35moe", "gemma3"] {
        let model = File::new(architecture, BlockType::F32).load(&cpu(Activations::F32));
        let before = plain(&*model);
        for info in model.named_modules().iter().filter(|info| info.kind.is_replaceable()) {
            // Outputs are as wide as the plain module's, which a hook tells.
            let width = Arc::new(Mutex::new(0));
            let seen = width.clone();
            let hook = model.hooks().on(&info.name, move |_, output| {
                *seen.lock().expect("not poisoned") = *output.shape().last().unwrap_or(&0);
                Ok(None)
            });
            plain(&*model);
            drop(hook.expect("a known name"));
            let width = *width.lock().expect("not poisoned");
            assert!(width > 0, "{}", info.name);
            let constant = move |context: &HookContext, x: &Tensor| -> Result<Tensor, HookError> {
                assert_eq!(context.sequence, None);
                let mut shape = x.shape().to_vec();
                *shape.last_mut().ok_or("a scalar")? = width;
                Ok(x.device().tensor_f32(&vec![0.25; shape.iter().product()], &shape)?)
            };
            let guard = model.replace(&info.name, Arc::new(constant)).expect("replaceable");
            assert!(plain(&*model) != before, "{} is not used", info.name);
            assert!(matches!(model.replace(&info.name, Arc::new(constant)), Err(Error::Replace { .. })));
            drop(guard);
            assert!(plain(&*model) == before, "{} left a trace", info.name);
        }
    }
}

#[test]
fn a_replaced_block_runs_ones_own_code() {
    let file = File::new("llama", BlockType::F32);
    let mut without = file.clone();
    without.tensor("blk.1.ffn_down.weight").values.fill(0.0);
    let device = cpu(Activations::F32);
    let model = file.load(&device);
    let nothing = |_: &HookContext, x: &Tensor| Ok(x.device().zeros(DType::F32, x.shape())?);
    let _guard = model.replace("model.layers.1.mlp", Arc::new(nothing)).expect("a block");
    assert!(plain(&*model) == plain(&*without.load(&device)));
}

#[test]
fn names_that_match_nothing_are_refused_with_near_ones() {
    let model = File::new("qwen35", BlockType::F32).load(&cpu(Activations::F32));
    let error = model.hooks().on("model.layers.1.self_atn", |_, _| Ok(None)).expect_err("no such name");
    assert!(error.to_string().contains("model.layers.1.self_attn,"), "{error}");
    let error = model.hooks().on("model.layers.*.attn", |_, _| Ok(None)).expect_err("no such name");
    assert!(error.to_string().contains("model.layers.*.self_attn"), "{error}");
    assert!(model.hooks().on_input("*.input_layernorm", |_, _| Ok(())).is_err(), "a norm has no matrix");
    let nothing = |_: &HookContext, x: &Tensor| Ok(x.clone());
    let error = model.replace("model.layers.9.mlp", Arc::new(nothing)).expect_err("no such name");
    assert!(error.to_string().contains("near names: model.layers.0.mlp"), "{error}");
    let error = model.replace("model.embed_tokens", Arc::new(nothing)).expect_err("takes ids");
    assert!(error.to_string().contains("hook"), "{error}");
    assert!(model.hooks().is_empty());
}

#[test]
fn every_named_value_is_seen() {
    for architecture in ARCHITECTURES {
        let model = File::new(architecture, BlockType::Q8_0).load(&cpu(Activations::Int8));
        let seen = Arc::new(Mutex::new(std::collections::BTreeMap::<String, usize>::new()));
        let counts = seen.clone();
        let guard = model.hooks().on("*", move |context, _| {
            *counts.lock().expect("not poisoned").entry(context.module.to_owned()).or_default() += 1;
            Ok(None)
        });
        plain(&*model);
        drop(guard);
        let seen = seen.lock().expect("not poisoned");
        for info in model.named_modules() {
            let stacks = info.kind == ModuleKind::Experts && !info.name.ends_with(".experts");
            let times = match info.kind {
                ModuleKind::Stack => 0,
                // A stack of experts' matrices shows its input only.
                _ if stacks => 0,
                _ if info.name.ends_with("attn_weights") || info.name.ends_with("recurrent_state") => 2,
                _ => 1,
            };
            assert_eq!(seen.get(&info.name).copied().unwrap_or(0), times, "{architecture}: {}", info.name);
        }
        let known = |name: &String| model.named_modules().iter().any(|info| info.name == *name);
        assert!(seen.keys().all(known), "{architecture}: something has no name");
    }
}

#[test]
fn chosen_experts_can_be_replaced() {
    let model = File::new("qwen3moe", BlockType::F32).load(&cpu(Activations::F32));
    let before = plain(&*model);
    let guard = model.hooks().on("*.mlp.gate.top_k_index", |_, chosen| {
        let ids: Vec<i32> = chosen.to_vec_i32()?.iter().map(|id| (id + 1) % 4).collect();
        Ok(Some(chosen.device().tensor_i32(&ids, chosen.shape())?))
    });
    assert!(plain(&*model) != before);
    drop(guard);
    assert!(plain(&*model) == before);
    let _guard = model.hooks().on("*.mlp.gate.top_k_index", |_, chosen| {
        Ok(Some(chosen.device().tensor_i32(&vec![99; chosen.len()], chosen.shape())?))
    });
    assert!(forward(&*model, &ForwardOptions::default()).is_err(), "there is no expert 99");
}

#[test]
fn attention_weights_can_be_replaced() {
    let model = File::new("qwen3", BlockType::F32).load(&cpu(Activations::F32));
    // Every query looks at its own key only: attention gives back its values.
    let values = Arc::new(Mutex::new([Vec::new(), Vec::new()]));
    let [kept, seen] = [values.clone(), values.clone()];
    let _own = model.hooks().on("model.layers.1.self_attn.attn_weights", |_, weights| {
        let [heads, len, keys] = *weights.shape() else { return Err("three dimensions".into()) };
        let mut own = vec![0.0; heads * len * keys];
        own.chunks_exact_mut(keys).enumerate().for_each(|(row, own)| own[keys - len + row % len] = 1.0);
        Ok(Some(weights.device().tensor_f32(&own, weights.shape())?))
    });
    let _v = model.hooks().on("model.layers.1.self_attn.v", move |_, v| {
        kept.lock().expect("not poisoned")[0] = v.to_vec_f32()?;
        Ok(None)
    });
    let _output = model.hooks().on("model.layers.1.self_attn.attn_output", move |_, output| {
        seen.lock().expect("not poisoned")[1] = output.to_vec_f32()?;
        Ok(None)
    });
    plain(&*model);
    let values = values.lock().expect("not poisoned");
    // Four query heads share two value heads of 32.
    for (v, output) in values[0].chunks_exact(64).zip(values[1].chunks_exact(128)) {
        for (head, output) in output.chunks_exact(32).enumerate() {
            assert!(output == &v[head / 2 * 32..][..32]);
        }
    }
}

#[test]
fn eager_attention_agrees_with_the_kernel() {
    for architecture in ARCHITECTURES {
        let model = File::new(architecture, BlockType::F32).load(&cpu(Activations::F32));
        let flash = plain(&*model);
        let options = ForwardOptions {
            attn_implementation: Some(AttnImplementation::Eager),
            output_attentions: true,
            ..ForwardOptions::default()
        };
        let eager = forward(&*model, &options).expect("the model runs");
        let distance = nmse([values(&eager.logits).as_slice()], [flash.as_slice()]);
        assert!(distance < 1e-10, "{architecture}: {distance}");
        let attentions = eager.attentions.expect("asked for");
        let softmax = |info: &&gruff_models::ModuleInfo| info.kind == ModuleKind::Attention;
        assert_eq!(attentions.len(), model.named_modules().iter().filter(softmax).count());
        for layer in &attentions {
            assert_eq!(layer.weights[1].shape(), [4, 12, 12], "{architecture}");
            for (row, weights) in values(&layer.weights[1]).chunks_exact(12).enumerate() {
                let sum: f32 = weights.iter().sum();
                assert!((sum - 1.0).abs() < 1e-6 && weights[row % 12 + 1..].iter().all(|w| *w == 0.0));
            }
        }
        model.set_attn_implementation(AttnImplementation::Eager);
        assert!(plain(&*model) == values(&eager.logits), "{architecture}");
    }
}

#[test]
fn attention_weights_are_not_asked_of_flash() {
    let model = File::new("llama", BlockType::F32).load(&cpu(Activations::F32));
    let options = ForwardOptions { output_attentions: true, ..ForwardOptions::default() };
    assert!(forward(&*model, &options).expect("auto falls back").attentions.is_some());
    model.set_attn_implementation(AttnImplementation::Flash);
    let error = forward(&*model, &options).expect_err("by name").to_string();
    assert!(error.contains("eager"), "{error}");
    assert!("sdpa".parse::<AttnImplementation>().is_err());
}

#[test]
fn hidden_states_are_transformers() {
    for architecture in ARCHITECTURES {
        let model = File::new(architecture, BlockType::Q8_0).load(&cpu(Activations::Int8));
        let before = plain(&*model);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = seen.clone();
        let guard = model.hooks().on("*", move |context, output| {
            let layer = context.layer.map(|layer| format!("model.layers.{layer}"));
            let whole = ["model.embed_tokens", "model.norm"].contains(&context.module);
            if whole || layer.as_deref() == Some(context.module) {
                kept.lock().expect("not poisoned").push(output.to_vec_f32()?);
            }
            Ok(None)
        });
        plain(&*model);
        drop(guard);
        let options = ForwardOptions { output_hidden_states: true, ..ForwardOptions::default() };
        let output = forward(&*model, &options).expect("the model runs");
        assert!(values(&output.logits) == before, "{architecture}");
        let states: Vec<_> = output.hidden_states.expect("asked for").iter().map(values).collect();
        let mut seen = std::mem::take(&mut *seen.lock().expect("not poisoned"));
        assert_eq!(states.len(), model.config().num_hidden_layers + 1);
        // The last layer's own output is not among them.
        seen.remove(seen.len() - 2);
        assert!(states == seen, "{architecture}");
        assert!(values(&output.last_hidden_state.expect("it is among them")) == states[states.len() - 1]);
    }
}

#[test]
fn the_last_hidden_state_needs_no_logits() {
    let model = File::new("gemma3", BlockType::Q8_0).load(&cpu(Activations::Int8));
    let options = ForwardOptions { output_last_hidden_state: true, ..ForwardOptions::default() };
    let all = values(&forward(&*model, &options).expect("runs").last_hidden_state.expect("asked for"));
    let mut caches = common::caches(&*model, KvDtype::F32, 1, PAGE_LEN, 0);
    let part = StepSequence { len: 7, past: 0, slot: 0, pages: vec![0] };
    let step = Step::text(ids(1, 7), vec![part]).expect("sound").with_output_rows(Vec::new()).expect("none");
    let output = model.forward_with(&step, &mut caches, &options).expect("runs");
    assert_eq!(output.logits.shape(), [0, 96]);
    assert!(values(&output.last_hidden_state.expect("asked for")) == all[..7 * 64]);
}

#[test]
fn recurrent_states_can_be_seen_and_replaced() {
    for (device, rollback) in [(cpu(Activations::F32), 0), (cpu(Activations::F32), 8)] {
        let model = File::new("qwen35", BlockType::F32).load(&device);
        let tokens = ids(3, 100);
        // The state behind every prefix by the rule itself, token by token on a model that is told each state anew.
        let run = |splits: &[usize], hook: &(dyn Fn(&mut Vec<f32>) -> bool + Send + Sync)| {
            let states = Arc::new(Mutex::new(Vec::new()));
            let mut caches = common::caches(&*model, KvDtype::F32, 1, 128, rollback);
            let mut sequences = [common::Sequence::new(tokens.clone(), 0, 1)];
            for len in splits {
                let kept = states.clone();
                let read = model.hooks().on("model.layers.0.linear_attn.recurrent_state", move |_, state| {
                    kept.lock().expect("not poisoned").push(state.to_vec_f32()?);
                    Ok(None)
                });
                common::step(&*model, &mut caches, &mut sequences, &[*len]);
                drop(read);
                let last = states.lock().expect("not poisoned").last().cloned();
                let mut state = last.expect("seen");
                if hook(&mut state) {
                    // Told again with a step of its own: written, then read back.
                    let told = state.clone();
                    let write =
                        model.hooks().on("model.layers.0.linear_attn.recurrent_state", move |_, state| {
                            Ok(Some(state.device().tensor_f32(&told, state.shape())?))
                        });
                    let past = sequences[0].past - 1;
                    sequences[0].truncate(past);
                    common::step(&*model, &mut caches, &mut sequences, &[1]);
                    drop(write);
                }
            }
            let [sequence] = sequences;
            (states.lock().expect("not poisoned").clone(), sequence.logits)
        };
        let (whole, logits) = run(&[100], &|_| false);
        let (parts, same) = run(&[30, 40, 25, 5], &|_| false);
        assert!(logits == same);
        assert!(nmse([whole[0].as_slice()], [parts[3].as_slice()]) < 1e-12);
        if rollback == 0 {
            continue;
        }
        // The same state, told as one matrix, goes on as before; another one does not.
        let (_, told) = run(&[95, 5], &|_| true);
        let last = |logits: &[Vec<f32>]| logits[96..].concat();
        assert!(nmse([last(&told).as_slice()], [last(&logits).as_slice()]) < 1e-9);
        let (_, other) = run(&[95, 5], &|state| {
            state.fill(0.0);
            true
        });
        assert!(nmse([last(&other).as_slice()], [last(&logits).as_slice()]) > 1e-6);
    }
}

#[test]
fn an_early_recurrent_state_cannot_be_replaced() {
    let model = File::new("qwen35", BlockType::F32).load(&cpu(Activations::F32));
    let zeros = |_: &HookContext, state: &Tensor| Ok(Some(state.device().zeros(DType::F32, state.shape())?));
    let _guard = model.hooks().on("*.recurrent_state", zeros);
    let error = forward(&*model, &ForwardOptions::default()).expect_err("too early").to_string();
    assert!(error.contains("64 tokens"), "{error}");
}

#[test]
fn weights_are_the_files() {
    for architecture in ARCHITECTURES {
        let file = File::new(architecture, BlockType::Q8_0);
        let model = file.load(&cpu(Activations::Int8));
        let names: Vec<String> = model.named_parameters().names().map(str::to_owned).collect();
        assert_eq!(names.len(), file.tensors.len(), "{architecture}: {names:?}");
        let gguf = file.build();
        for name in &names {
            let weight = model.weight(name).expect("listed");
            let module = name.trim_end_matches(".weight").trim_end_matches(".bias");
            let stem = model.names().gguf(module).expect("in the table");
            let suffix = if name.ends_with(".bias") { ".bias" } else { ".weight" };
            let tensor =
                gguf.tensor(&stem).or_else(|| gguf.tensor(&format!("{stem}{suffix}"))).expect("a tensor");
            assert!(
                *weight.bytes().expect("host memory") == *gguf.data(tensor).expect("in the file"),
                "{name}"
            );
            let unpacked = tensor.block_type().expect("known").unpack_to_vec(&weight.bytes().expect("host"));
            assert!(weight.to_vec_f32().expect("host") == unpacked.expect("whole blocks"), "{name}");
        }
    }
}

#[test]
fn parts_of_stacked_tensors_are_weights_of_their_own() {
    let mut file = File::new("qwen35moe", BlockType::Q8_0);
    let apart = file.clone().load(&cpu(Activations::Int8));
    file.fuse(&["blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"], "blk.1.ffn_gate_up_exps.weight");
    file.fuse(
        &["blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight"],
        "blk.1.attn_qkv.weight",
    );
    let stacked = file.load(&cpu(Activations::Int8));
    let names = |model: &dyn Model| model.named_parameters().names().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(names(&*apart), names(&*stacked));
    for name in names(&*apart) {
        let (one, other) = (apart.weight(&name).expect("there"), stacked.weight(&name).expect("there"));
        assert!(one.bytes().expect("host") == other.bytes().expect("host"), "{name}");
        assert!(one.to_vec_f32().expect("host") == other.to_vec_f32().expect("host"), "{name}");
    }
}

#[test]
fn a_set_weight_is_the_models_own() {
    for architecture in ARCHITECTURES {
        let file = File::new(architecture, BlockType::F32);
        let device = cpu(Activations::F32);
        let model = file.load(&device);
        let before = plain(&*model);
        for name in model.named_parameters().names().map(str::to_owned).collect::<Vec<_>>() {
            let own = model.weight(&name).expect("listed");
            let changed: Vec<f32> = own.to_vec_f32().expect("host").iter().map(|value| value * 0.5).collect();
            let shape = own.shape();
            let weight = match &own {
                Weight::Packed(_) => {
                    Weight::pack(&device, &changed, BlockType::F32, &shape).expect("whole rows")
                }
                Weight::Dense(_) => Weight::dense(&device, &changed, &shape).expect("the same shape"),
            };
            model.set_weight(&name, weight).expect("it fits");
            let after = plain(&*model);
            assert!(after != before, "{architecture}: {name} is not used");
            // A file with the same change is the same model.
            let mut other = file.clone();
            let module = name.trim_end_matches(".weight").trim_end_matches(".bias");
            let stem = model.names().gguf(module).expect("in the table");
            let suffix = if name.ends_with(".bias") { ".bias" } else { ".weight" };
            let full = format!("{stem}{suffix}");
            let named = if other.tensors.iter().any(|entry| entry.name == full) { &full } else { &stem };
            other.tensor(named).values = changed;
            assert!(plain(&*other.load(&device)) == after, "{architecture}: {name}");
            assert!(model.named_parameters().reset(&name) && !model.named_parameters().reset(&name));
        }
        assert!(plain(&*model) == before, "{architecture}");
    }
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    let device = cpu(Activations::F32);
    let model = File::new("llama", BlockType::Q8_0).load(&device);
    let name = "model.layers.0.mlp.up_proj.weight";
    let small = Weight::dense(&device, &[0.0; 64], &[1, 64]).expect("64 values");
    let error = model.set_weight(name, small).expect_err("another shape").to_string();
    assert!(error.contains("[96, 64]") && error.contains("[1, 64]"), "{error}");
    let error = model.weight("model.layers.0.mlp.upproj.weight").expect_err("no such name").to_string();
    assert!(error.contains(name), "{error}");
    let elsewhere = Weight::pack(&cpu(Activations::F32), &[0.0; 96 * 64], BlockType::Q8_0, &[96, 64]);
    assert!(model.set_weight(name, elsewhere.expect("whole blocks")).is_err());
    assert!(Weight::pack(&device, &[0.0; 3], BlockType::Q8_0, &[96, 64]).is_err());
    assert!(Weight::from_bytes(&device, vec![0; 3], BlockType::Q8_0, &[96, 64]).is_err());
}

fn random(seed: u32, i: usize) -> f32 {
    ((i as u32).wrapping_add(seed).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.5
}

/// Matrices, outputs and inputs of a module; a table of embeddings has tokens as inputs.
fn sizes(model: &dyn Model, module: &str) -> (usize, usize, usize) {
    match model.weight(&format!("{module}.weight")).expect("a matrix").shape()[..] {
        [vocabulary, hidden] if module == "model.embed_tokens" => (1, hidden, vocabulary),
        [outputs, inputs] => (1, outputs, inputs),
        [stack, outputs, inputs] => (stack, outputs, inputs),
        _ => panic!("{module} is no matrix"),
    }
}

/// Random matrices of rank 3 beside these modules.
fn lora(model: &dyn Model, seed: u32, modules: &[&str], factor: f32) -> Lora {
    let mut lora = Lora::new();
    for module in modules {
        let (stack, outputs, inputs) = sizes(model, module);
        let weight = |seed: u32, rows: usize, cols: usize| {
            let values: Vec<f32> = (0..stack * rows * cols).map(|i| random(seed, i)).collect();
            Weight::pack(model.device(), &values, BlockType::F32, &[stack, rows, cols]).expect("they fill it")
        };
        let (a, b) = (weight(seed, 3, inputs), weight(seed + 1000, outputs, 3));
        lora.add(model, module, &a, &b, factor).expect("it fits");
    }
    lora
}

const ADAPTED: [&str; 6] = [
    "model.embed_tokens",
    "model.layers.0.mlp.gate_proj",
    "model.layers.1.self_attn.q_proj",
    "model.layers.1.mlp.down_proj",
    "model.layers.3.self_attn.o_proj",
    "lm_head",
];

const ADAPTED_EXPERTS: [&str; 5] = [
    "model.embed_tokens",
    "model.layers.0.mlp.experts.gate_proj",
    "model.layers.1.mlp.experts.up_proj",
    "model.layers.1.mlp.experts.down_proj",
    "model.layers.2.mlp.shared_expert.up_proj",
];

fn scales(pairs: &[(&str, f32)]) -> LoraScales {
    pairs.iter().map(|(name, scale)| ((*name).to_owned(), *scale)).collect()
}

#[test]
fn an_adapter_is_a_change_of_the_weights() {
    for (architecture, adapted) in [("qwen35", &ADAPTED[..]), ("qwen35moe", &ADAPTED_EXPERTS)] {
        check_merged(architecture, adapted);
    }
}

fn check_merged(architecture: &str, adapted: &[&str]) {
    let device = cpu(Activations::F32);
    let model = File::new(architecture, BlockType::F32).load(&device);
    let before = plain(&*model);
    model.adapters().add("one", lora(&*model, 1, adapted, 0.5), 1.0).expect("a new name");
    let beside = plain(&*model);
    assert!(beside != before);
    model.adapters().set_scale("one", 0.0).expect("it is there");
    assert!(plain(&*model) == before, "an adapter at 0 is off");
    model.adapters().remove("one").expect("it is there");
    assert!(plain(&*model) == before);

    // The same, merged: W + 0.5 B A.
    for module in adapted {
        let name = format!("{module}.weight");
        let own = model.weight(&name).expect("a matrix");
        let (stack, outputs, inputs) = sizes(&*model, module);
        let mut values = own.to_vec_f32().expect("host");
        for (matrix, row, col) in
            (0..stack * outputs * inputs).map(|i| (i / (outputs * inputs), i / inputs % outputs, i % inputs))
        {
            let a = |r: usize| random(1, (matrix * 3 + r) * inputs + col);
            let b = |r: usize| random(1001, (matrix * outputs + row) * 3 + r);
            let sum: f32 = (0..3).map(|r| b(r) * a(r)).sum();
            let at = if *module == "model.embed_tokens" {
                col * outputs + row
            } else {
                (matrix * outputs + row) * inputs + col
            };
            values[at] += 0.5 * sum;
        }
        let merged = Weight::pack(&device, &values, BlockType::F32, &own.shape()).expect("whole rows");
        model.set_weight(&name, merged).expect("it fits");
    }
    let distance = nmse([plain(&*model).as_slice()], [beside.as_slice()]);
    assert!(distance < 1e-10, "{architecture}: {distance}");
}

#[test]
fn sequences_have_scales_of_their_own() {
    for (architecture, adapted) in [("qwen35", &ADAPTED[..]), ("qwen35moe", &ADAPTED_EXPERTS)] {
        check_own_scales(architecture, adapted);
    }
}

fn check_own_scales(architecture: &str, adapted: &[&str]) {
    let model = File::new(architecture, BlockType::Q8_0).load(&cpu(Activations::Int8));
    let before = plain(&*model);
    model.adapters().add("one", lora(&*model, 1, adapted, 0.5), 0.0).expect("a new name");
    model.adapters().add("two", lora(&*model, 7, &adapted[1..4], 0.5), 0.0).expect("a new name");
    assert!(plain(&*model) == before, "they are off");
    let run = |first: &[(&str, f32)], second: &[(&str, f32)]| {
        let adapters = Some(vec![scales(first), scales(second)]);
        let output = forward(&*model, &ForwardOptions { adapters, ..ForwardOptions::default() });
        let all = values(&output.expect("loaded").logits);
        let (first, second) = all.split_at(7 * 96);
        (first.to_vec(), second.to_vec())
    };
    let (own_first, own_second) = before.split_at(7 * 96);
    let half = [("one", 0.5)];
    let both = [("one", 1.0), ("two", -2.0)];
    let alone = run(&half, &[]);
    assert!(alone.1 == own_second && alone.0 != own_first);
    let other = run(&[], &both);
    assert!(other.0 == own_first && other.1 != own_second);
    let mixed = run(&half, &both);
    assert!(mixed == (alone.0.clone(), other.1), "a sequence's rows depend on its own scales");
    assert!(run(&half, &half).0 == alone.0);
}

#[test]
fn adapters_that_do_not_fit_are_refused() {
    let device = cpu(Activations::F32);
    let model = File::new("qwen35moe", BlockType::F32).load(&device);
    let matrix = |rows: usize, cols: usize| {
        Weight::dense(&device, &vec![0.1; rows * cols], &[rows, cols]).expect("they fill it")
    };
    let try_add = |module: &str, a: &Weight, b: &Weight, factor: f32| {
        Lora::new().add(&*model, module, a, b, factor).map_err(|error| error.to_string())
    };
    let module = "model.layers.1.self_attn.k_proj";
    assert_eq!(try_add(module, &matrix(2, 64), &matrix(64, 2), 1.0), Ok(()));
    for (module, a, b, factor, expected) in [
        (module, matrix(2, 64), matrix(64, 3), 1.0, "ranks differ"),
        (module, matrix(2, 32), matrix(64, 2), 1.0, "another base model"),
        (module, matrix(2, 64), matrix(32, 2), 1.0, "another base model"),
        (module, matrix(2, 64), matrix(64, 2), f32::NAN, "scale"),
        ("model.layers.9.mlp.up_proj", matrix(2, 64), matrix(64, 2), 1.0, "not in this model"),
        ("model.layers.1.mlp.experts.up_proj", matrix(2, 64), matrix(64, 2), 1.0, "another base model"),
        ("model.layers.1.mlp.experts", matrix(2, 64), matrix(64, 2), 1.0, "all experts together"),
        ("model.embed_tokens", matrix(2, 64), matrix(64, 2), 1.0, "another base model"),
        ("model.norm", matrix(2, 64), matrix(64, 2), 1.0, "Norm"),
    ] {
        let error = try_add(module, &a, &b, factor).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
    let wild = Weight::dense(&device, &[f32::INFINITY; 128], &[2, 64]).expect("128 values");
    assert!(try_add(module, &wild, &matrix(64, 2), 1.0).is_err());
    let adapters = model.adapters();
    adapters.add("a", Lora::new(), 1.0).expect("a new name");
    assert!(adapters.add("a", Lora::new(), 1.0).is_err() && adapters.remove("b").is_err());
    assert!(adapters.set_scale("a", f32::INFINITY).is_err());
    let unknown = Some(vec![scales(&[("b", 1.0)]), LoraScales::new()]);
    assert!(forward(&*model, &ForwardOptions { adapters: unknown, ..ForwardOptions::default() }).is_err());
    let few = Some(vec![LoraScales::new()]);
    assert!(forward(&*model, &ForwardOptions { adapters: few, ..ForwardOptions::default() }).is_err());
}

#[test]
fn whatever_intervenes_changes_the_revision() {
    let model = File::new("llama", BlockType::F32).load(&cpu(Activations::F32));
    let mut seen = vec![model.revision()];
    let mut check = |what: &str| {
        let now = model.revision();
        assert!(!seen.contains(&now), "{what}");
        seen.push(now);
    };
    let guard = model.hooks().on("lm_head", |_, _| Ok(None));
    check("a hook");
    drop(guard);
    check("no hook");
    let zeros = |_: &HookContext, x: &Tensor| Ok(x.clone());
    let guard = model.replace("model.layers.0.mlp", Arc::new(zeros));
    check("a module");
    drop(guard);
    check("no module");
    let name = "model.norm.weight";
    model.set_weight(name, model.weight(name).expect("there")).expect("it fits");
    check("a weight");
    model.adapters().add("a", Lora::new(), 1.0).expect("new");
    check("an adapter");
    model.set_attn_implementation(AttnImplementation::Eager);
    check("attention");
    assert_eq!(logits(&*model, KvDtype::F32, &ids(1, 3)).len(), LAST);
}
