//! Models whose matrices are shared out among devices compute what models on one device do.

mod common;

use std::sync::Arc;

use common::{ARCHITECTURES, File, Sequence, caches, cpu, ids, logits, nmse, step, story};
use gruff_blocks::BlockType;
use gruff_gguf::Gguf;
use gruff_kernels::{
    Activations, Collective, CudaError, CudaOptions, Device, Error, KvDtype, PAGE_LEN, Step, StepSequence,
    StepTokens, Tensor,
};
use gruff_models::{
    CacheLayer, CacheOptions, Caches, ForwardOptions, HookContext, Lora, Model, PartBytes, Placement, Steps,
    load_placed, prepare,
};

fn cpus(count: usize, activations: Activations) -> Vec<Device> {
    (0..count).map(|_| cpu(activations)).collect()
}

fn share(gguf: &Gguf, devices: &[Device]) -> Box<dyn Model> {
    load_placed(gguf, &Placement::tensor_parallel(devices)).expect("the model loads")
}

/// A model that two devices can share: heads of gated delta nets and experts are whole blocks.
fn file(architecture: &str) -> File {
    File::of_width(architecture, BlockType::Q4_0, 32)
}

fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|bits| f32::from_bits(*bits)).collect()
}

fn distance(found: &[u32], expected: &[u32]) -> f64 {
    nmse([floats(found).as_slice()], [floats(expected).as_slice()])
}

#[test]
fn two_devices_compute_what_one_does() {
    for architecture in ARCHITECTURES {
        let file = file(architecture);
        let expected = story(&*file.load(&cpu(Activations::F32)), KvDtype::F32);
        let found = story(&*share(&file.build(), &cpus(2, Activations::F32)), KvDtype::F32);
        let error = distance(&found, &expected);
        assert!(error < 1e-11 && found != expected, "{architecture}: {error:e}");
    }
}

#[test]
fn more_devices_than_key_value_heads_have_them_more_than_once() {
    for architecture in ["llama", "qwen2", "qwen3", "gemma3"] {
        let file = File::new(architecture, BlockType::F16);
        let expected = story(&*file.load(&cpu(Activations::F32)), KvDtype::F32);
        let found = story(&*share(&file.build(), &cpus(4, Activations::F32)), KvDtype::F32);
        let error = distance(&found, &expected);
        assert!(error < 1e-11, "{architecture}: {error:e}");
    }
}

#[test]
fn a_vocabulary_that_has_no_equal_parts_is_shared_out() {
    // A head of its own, and one that is the embedding table.
    for architecture in ["llama", "gemma3"] {
        for (rows, devices) in [(101, 2), (101, 4), (100, 4)] {
            let file = File::new(architecture, BlockType::F16).with_vocab(rows);
            let expected = story(&*file.load(&cpu(Activations::F32)), KvDtype::F32);
            let found = story(&*share(&file.build(), &cpus(devices, Activations::F32)), KvDtype::F32);
            let error = distance(&found, &expected);
            assert!(error < 1e-11, "{architecture}, {rows} by {devices}: {error:e}");
        }
    }
}

#[test]
fn rounded_activations_cost_no_more_than_on_one_device() {
    for architecture in ["llama", "qwen35", "qwen35moe"] {
        let file = file(architecture);
        let exact = story(&*file.load(&cpu(Activations::F32)), KvDtype::F16);
        let one = story(&*file.load(&cpu(Activations::Int8)), KvDtype::F16);
        let two = story(&*share(&file.build(), &cpus(2, Activations::Int8)), KvDtype::F16);
        let [one, two] = [one, two].map(|found| distance(&found, &exact));
        assert!(two < 1.5 * one, "{architecture}: {two:e}, {one:e} on one device");
    }
}

#[test]
fn embeddings_that_are_given_reach_every_device() {
    let file = file("qwen35");
    let [one, two] = [cpus(1, Activations::F32), cpus(2, Activations::F32)];
    let models = [file.load(&one[0]), share(&file.build(), &two)];
    let [expected, found] = models.map(|model| {
        let width = model.config().hidden_size;
        let values: Vec<f32> = (0..7 * width).map(|at| (at % 17) as f32 / 9.0 - 0.9).collect();
        let rows = model.device().tensor_f32(&values, &[7, width]).expect("rows");
        let part = StepSequence { len: 7, past: 0, slot: 0, pages: vec![0] };
        let line: Vec<u32> = (0..7).collect();
        let lines = [line.clone(), line.clone(), line];
        let step = Step::new(StepTokens::Embeddings(rows), lines, vec![part], vec![2, 6]).expect("sound");
        let mut caches = caches(&*model, KvDtype::F32, 1, PAGE_LEN, 0);
        model.forward(&step, &mut caches).expect("the model runs").to_vec_f32().expect("f32")
    });
    let error = nmse([found.as_slice()], [expected.as_slice()]);
    assert!(error < 1e-11, "{error:e}");
}

/// Logits alone, and beside others whose steps are cut differently.
fn alone_and_in_company(model: &dyn Model) {
    let own = ids(1, 50);
    let alone = logits(model, KvDtype::F16, &own);
    let mut caches = caches(model, KvDtype::F16, 3, 2 * PAGE_LEN, 0);
    let others = [Sequence::new(own, 0, 3), Sequence::new(ids(2, 50), 1, 3), Sequence::new(ids(3, 50), 2, 3)];
    let mut sequences = others;
    for lens in [[20, 0, 7], [1, 33, 1], [1, 1, 1], [28, 1, 0]] {
        step(model, &mut caches, &mut sequences, &lens);
    }
    assert!(common::bits(&sequences[0].logits) == common::bits(&alone));
}

#[test]
fn a_request_has_its_bits_whatever_is_beside_it() {
    for architecture in ARCHITECTURES {
        alone_and_in_company(&*share(&file(architecture).build(), &cpus(2, Activations::Int8)));
    }
    let four = File::new("llama", BlockType::F16);
    alone_and_in_company(&*share(&four.build(), &cpus(4, Activations::Int8)));
}

#[test]
fn parts_of_stacked_tensors_are_those_of_their_own() {
    let stacks: [(&str, &[&str], &str); 3] = [
        ("llama", &["ffn_gate", "ffn_up"], "ffn_gate_up"),
        ("qwen2", &["attn_q", "attn_k", "attn_v"], "attn_qkv"),
        ("qwen3moe", &["ffn_gate_exps", "ffn_up_exps"], "ffn_gate_up_exps"),
    ];
    for (architecture, parts, stack) in stacks {
        let apart = file(architecture);
        let mut fused = apart.clone();
        for layer in 0..4 {
            let full = |part: &str, end: &str| format!("blk.{layer}.{part}.{end}");
            for end in ["weight", "bias"] {
                let names: Vec<String> = parts.iter().map(|part| full(part, end)).collect();
                if apart.tensors.iter().any(|entry| entry.name == names[0]) {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    fused.fuse(&names, &full(stack, end));
                }
            }
        }
        let [apart, fused] = [apart, fused]
            .map(|file| story(&*share(&file.build(), &cpus(2, Activations::F32)), KvDtype::F16));
        assert!(apart == fused, "{architecture}");
    }
}

#[test]
fn caches_and_weights_are_planned_as_they_are_shared_out() {
    for architecture in ARCHITECTURES {
        let file = file(architecture);
        let devices = cpus(2, Activations::F32);
        let (whole, model) = (file.load(&devices[0]), share(&file.build(), &devices));
        assert_eq!(model.devices().len(), 2);
        assert!(model.placement().is_split() && model.device().same(&devices[0]));
        let options = CacheOptions { kv_dtype: KvDtype::F16, pages: 3, slots: 2, rollback: 4 };
        let (plan, own) = (&model.config().caches, &whole.config().caches);
        let [parts, all] = [plan, own].map(|plan| plan.bytes(&options).expect("they can be counted"));
        // Pools begin at round addresses.
        assert!(parts >= all && parts < all + all / 100, "{architecture}: nothing is there twice");
        let caches = model.new_caches(&options).expect("there is memory");
        let layers = caches.layers();
        assert_eq!(layers.len(), 2 * own.layers().len());
        for (index, layer) in layers.iter().enumerate() {
            let memory = match layer {
                CacheLayer::Kv(kv) => kv.keys(),
                CacheLayer::State(state) => state.matrix(),
            };
            assert!(memory.device().same(&devices[index / own.layers().len()]), "cache {index}");
        }

        let parts = PartBytes::of(&*model);
        assert_eq!(parts, PartBytes::of(&*whole));
        let [a, b] = [0, 1].map(|index| parts.on(model.placement(), &devices[index]));
        let all = parts.on(&Placement::on(&devices[0]), &devices[0]);
        assert!(a == b && a < all && 2 * a >= all + parts.embedding, "{architecture}: {a} of {all}");
    }
    // Every device has a key-value head, of which there are only two.
    let model = share(&File::new("llama", BlockType::F16).build(), &cpus(4, Activations::F32));
    let per_token = |plan: &gruff_models::CachePlan| plan.bytes_per_token(KvDtype::F16);
    let whole = File::new("llama", BlockType::F16).load(&cpu(Activations::F32));
    assert_eq!(per_token(&model.config().caches), 2 * per_token(&whole.config().caches));
}

#[test]
fn what_cannot_be_shared_out_is_told() {
    let told = |file: &File, devices: usize| {
        let placement = Placement::tensor_parallel(&cpus(devices, Activations::F32));
        load_placed(&file.build(), &placement).err().expect("refused").to_string()
    };
    let narrow = |architecture| File::new(architecture, BlockType::Q4_0);
    for (file, devices, expected) in [
        (narrow("llama"), 3, "4 query heads of model.layers.0.self_attn"),
        (narrow("llama"), 4, "model.layers.0.mlp.down_proj has 96 columns in blocks of 32 (Q4_0)"),
        (narrow("qwen3moe"), 2, "mlp.experts.down_proj has 32 columns"),
        (file("qwen35"), 4, "2 key heads of model.layers.0.linear_attn"),
        (
            narrow("qwen35"),
            2,
            "model.layers.0.linear_attn.out_proj: a part of its columns is not whole blocks",
        ),
        (narrow("llama"), 1, "two devices"),
    ] {
        let told = told(&file, devices);
        assert!(told.contains(expected), "{told}");
        assert!(devices == 1 || told.contains("--split-mode layer"), "{told}");
    }
}

#[test]
fn interventions_are_refused_and_weights_can_be_read() {
    let file = file("qwen35");
    let model = share(&file.build(), &cpus(2, Activations::F32));
    let told = |error: gruff_models::Error| {
        let told = error.to_string();
        assert!(told.contains("--split-mode tensor"), "{told}");
    };
    let name = "model.layers.1.mlp";
    told(model.hooks().on(name, |_, _: &Tensor| Ok(None)).expect_err("refused"));
    told(model.hooks().on_input("*", |_, _| Ok(())).expect_err("refused"));
    let own = |_: &HookContext, x: &Tensor| Ok(x.clone());
    told(model.replace(name, Arc::new(own)).expect_err("refused"));
    told(model.adapters().add("lora", Lora::new(), 1.0).expect_err("refused"));
    let weight = "model.layers.1.mlp.down_proj.weight";
    let read = model.weight(weight).expect("it is there");
    let whole = file.load(&cpu(Activations::F32));
    let expected = whole.weight(weight).expect("it is there");
    assert_eq!(read.to_vec_f32().expect("values"), expected.to_vec_f32().expect("values"));
    told(model.set_weight(weight, read).expect_err("refused"));
    assert!(model.is_as_loaded() && !model.takes_late_ids() && !model.draws());
    let digests =
        [&model, &whole].map(|model| gruff_models::fingerprint(&**model).expect("weights can be read"));
    assert_ne!(digests[0], digests[1], "the bits are others");

    let mut sequences = [Sequence::new(ids(1, 3), 0, 1)];
    let mut own = caches(&*model, KvDtype::F16, 1, PAGE_LEN, 0);
    step(&*model, &mut own, &mut sequences, &[3]);
    let part = StepSequence { len: 1, past: 3, slot: 0, pages: vec![0] };
    let next = Step::text(vec![1], vec![part]).expect("sound");
    let options = ForwardOptions { output_hidden_states: true, ..ForwardOptions::default() };
    let refused = model.forward_with(&next, &mut own, &options).expect_err("refused");
    assert!(refused.to_string().contains("logits only"), "{refused}");
    let mut others = caches(&*whole, KvDtype::F16, 1, PAGE_LEN, 0);
    let refused = model.forward(&next, &mut others).expect_err("refused");
    assert!(refused.to_string().contains("new_caches"), "{refused}");
}

#[test]
fn a_fault_of_one_device_is_told_and_the_next_step_computed() {
    let model = share(&file("qwen35").build(), &cpus(2, Activations::F32));
    let expected = logits(&*model, KvDtype::F16, &ids(1, 9));
    let mut caches = caches(&*model, KvDtype::F16, 1, PAGE_LEN, 0);
    let part = |slot| StepSequence { len: 1, past: 0, slot, pages: vec![0] };
    let bad = Step::text(vec![1], vec![part(7)]).expect("sound");
    let error = model.forward(&bad, &mut caches).expect_err("there is no slot 7");
    assert!(!error.to_string().contains("rank"), "the fault itself: {error}");
    let mut sequences = [Sequence::new(ids(1, 9), 0, 1)];
    step(&*model, &mut caches, &mut sequences, &[9]);
    assert!(common::bits(&sequences[0].logits) == common::bits(&expected));
}

/// So many cards, where there are so many and NCCL (or what stands in for them, `tools/emulator` with CUDA_EMULATOR_DEVICES).
fn cards(count: usize, activations: Activations) -> Option<Vec<Device>> {
    // The emulator has NCCL.
    match Collective::library() {
        Err(error) if std::env::var_os("CUDA_EMULATOR_DEVICES").is_none() => {
            eprintln!("no {count} cards share a model here: {error}");
            None
        }
        _ => open_cards(count, activations),
    }
}

fn open_cards(count: usize, activations: Activations) -> Option<Vec<Device>> {
    let card = |ordinal| match Device::cuda(ordinal, CudaOptions { activations, ..CudaOptions::default() }) {
        Ok(device) => Some(device),
        Err(Error::Cuda(error @ (CudaError::NoDriver { .. } | CudaError::NoDevice { .. }))) => {
            eprintln!("no {count} cards share a model here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    };
    (0..count).map(card).collect()
}

#[test]
fn two_cards_compute_what_the_cpu_does() {
    let Some(devices) = cards(2, Activations::F32) else { return };
    for architecture in ["llama", "qwen35", "qwen35moe"] {
        let file = file(architecture);
        let expected = logits(&*file.load(&cpu(Activations::F32)), KvDtype::F32, &ids(1, 40));
        let found = logits(&*share(&file.build(), &devices), KvDtype::F32, &ids(1, 40));
        let error = nmse(found.iter().map(Vec::as_slice), expected.iter().map(Vec::as_slice));
        assert!(error < 1e-9, "{architecture}: {error:e}");
    }
}

#[test]
fn four_cards_compute_what_the_cpu_does() {
    let Some(devices) = cards(4, Activations::F32) else { return };
    let file = File::new("llama", BlockType::F16);
    let expected = logits(&*file.load(&cpu(Activations::F32)), KvDtype::F32, &ids(1, 40));
    let model = share(&file.build(), &devices);
    let found = logits(&*model, KvDtype::F32, &ids(1, 40));
    let error = nmse(found.iter().map(Vec::as_slice), expected.iter().map(Vec::as_slice));
    assert!(error < 1e-9, "{error:e}");
    alone_and_in_company(&*model);
}

#[test]
fn a_head_that_is_the_embedding_table_takes_no_memory_of_two_cards() {
    let Some(devices) = cards(2, Activations::F32) else { return };
    // What the second card has more than the first: of layers the same, whether the vocabulary has equal parts or not.
    let more = [112, 101].map(|rows| {
        let file = file("gemma3").with_vocab(rows);
        let before = [0, 1].map(|index: usize| devices[index].allocated_bytes());
        let model = share(&file.build(), &devices);
        let taken = [0, 1].map(|index: usize| devices[index].allocated_bytes() - before[index]);
        let expected = logits(&*file.load(&cpu(Activations::F32)), KvDtype::F32, &ids(1, 9));
        let found = logits(&*model, KvDtype::F32, &ids(1, 9));
        let error = nmse(found.iter().map(Vec::as_slice), expected.iter().map(Vec::as_slice));
        assert!(error < 1e-9, "{rows}: {error:e}");
        taken[1] - taken[0]
    });
    assert_eq!(more[0], more[1]);
}

#[test]
fn cards_take_as_much_for_weights_as_is_planned() {
    let Some(devices) = cards(2, Activations::Bf16) else { return };
    for (architecture, rows) in [("llama", 101), ("gemma3", 101), ("gemma3", 9), ("qwen35moe", 96)] {
        let file = file(architecture).with_vocab(rows);
        let before = [0, 1].map(|index: usize| devices[index].allocated_bytes());
        let model = share(&file.build(), &devices);
        let parts = PartBytes::of(&*model);
        let planned = parts.on(model.placement(), &devices[0]);
        assert_eq!(planned, parts.on(model.placement(), &devices[1]));
        let taken = [0, 1].map(|index| (devices[index].allocated_bytes() - before[index]) as u64);
        let most = taken[0].max(taken[1]);
        // Something stands behind each of them, and small vectors are planned for as if they were whole.
        let weights = model.named_parameters().names().count() as u64;
        assert!(
            (most..most + 1024 * weights).contains(&planned),
            "{architecture}: {planned}, took {taken:?}"
        );
    }
}

#[test]
fn two_cards_on_the_fast_path_hold_to_one() {
    let Some(devices) = cards(2, Activations::Bf16) else { return };
    for architecture in ["qwen35", "qwen35moe"] {
        let file = file(architecture);
        let expected = story(&*file.load(&devices[0]), KvDtype::F16);
        let model = share(&file.build(), &devices);
        let steps = Steps { kv_dtype: KvDtype::F16, sequences: 2, tokens: 75 };
        prepare(&*model, &steps).expect("kernels compile");
        let ready: Vec<usize> = devices.iter().map(Device::loaded_kernels).collect();
        let error = distance(&story(&*model, KvDtype::F16), &expected);
        assert!(error < 2e-4, "{architecture}: {error:e}");
        let now: Vec<usize> = devices.iter().map(Device::loaded_kernels).collect();
        assert_eq!(now, ready, "{architecture}: nothing is left to compile");
        alone_and_in_company(&*model);
    }
}

/// The logits of a sequence's first tokens, in caches that a step may have failed in.
fn retry(model: &dyn Model, caches: &mut Caches) -> Vec<u32> {
    let mut sequences = [Sequence::new(ids(1, 9), 0, 1)];
    step(model, caches, &mut sequences, &[9]);
    common::bits(&sequences[0].logits)
}

#[test]
fn a_card_that_refuses_a_launch_fails_one_step() {
    // tools/checks/cuda_emulated.sh runs it with a file for it.
    let Some(faults) = std::env::var_os("CUDA_EMULATOR_FAULTS") else { return };
    let Some(devices) = cards(2, Activations::Bf16) else { return };
    let model = share(&file("qwen35").build(), &devices);
    let mut caches = caches(&*model, KvDtype::F16, 1, PAGE_LEN, 0);
    let expected = retry(&*model, &mut caches);
    for launch in [1, 2, 9, 30] {
        std::fs::write(&faults, format!("launch {launch}")).expect("a file");
        let part = StepSequence { len: 9, past: 0, slot: 0, pages: vec![0] };
        let again = Step::text(ids(1, 9), vec![part]).expect("sound");
        let error = model.forward(&again, &mut caches).expect_err("a launch is refused").to_string();
        assert!(!error.contains("rank"), "the fault itself: {error}");
        std::fs::write(&faults, "").expect("a file");
        assert!(devices.iter().all(|device| device.lost().is_none()));
        assert!(retry(&*model, &mut caches) == expected, "launch {launch}");
    }
}

#[test]
fn cards_that_nccl_fails_are_lost() {
    // tools/checks/cuda_emulated.sh runs it with an operation that fails.
    let Some(nth) = std::env::var_os("CUDA_EMULATOR_NCCL_FAULT") else { return };
    let Some(devices) = cards(2, Activations::Bf16) else { return };
    let nth: usize = nth.to_string_lossy().parse().expect("a number");
    let model = share(&file("llama").build(), &devices);
    let mut caches = caches(&*model, KvDtype::F16, 1, PAGE_LEN, 0);
    // Two sums a layer and the logits.
    let each = 2 * model.config().num_hidden_layers + 1;
    assert!(nth > each && nth <= 2 * each, "the second step fails");
    retry(&*model, &mut caches);
    let part = StepSequence { len: 1, past: 9, slot: 0, pages: vec![0] };
    let next = Step::text(vec![1], vec![part]).expect("sound");
    for _ in 0..2 {
        let error = model.forward(&next, &mut caches).expect_err("NCCL fails").to_string();
        assert!(error.contains("NCCL") && error.contains("on demand"), "{error}");
        assert!(devices.iter().all(|device| device.lost().is_some_and(|told| told.contains("NCCL"))));
    }
}

#[test]
fn a_library_that_is_not_there_is_told() {
    // tools/checks/cuda_emulated.sh runs it with a name of nothing.
    let missing = std::env::var_os("GRUFF_NCCL").filter(|path| !std::path::Path::new(path).exists());
    let (Some(path), Some(devices)) = (missing, open_cards(2, Activations::Bf16)) else { return };
    let placement = Placement::tensor_parallel(&devices);
    let told = load_placed(&file("llama").build(), &placement).err().expect("refused").to_string();
    for part in ["nvidia-nccl-cu12", "GRUFF_NCCL", &path.to_string_lossy(), "--split-mode layer"] {
        assert!(told.contains(part), "{told}");
    }
}
