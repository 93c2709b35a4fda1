//! Models whose parts live on several devices compute what models on one device do.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{ARCHITECTURES, File, cpu, ids, logits, nmse, story};
use gruff_blocks::BlockType;
use gruff_kernels::{
    Activations, CudaError, CudaOptions, Device, Error, KvDtype, PAGE_LEN, Step, StepSequence, StepTokens,
    Tensor,
};
use gruff_models::{
    CacheLayer, ForwardOptions, HookContext, Lora, Model, ModuleKind, PartBytes, Placement, Steps, Weight,
    load_placed, prepare,
};

/// Placements over devices of one kind, which compute the same bits.
fn placements(devices: &[Device; 3]) -> Vec<Placement> {
    let [a, b, c] = devices;
    vec![
        Placement::on(a).with_layers(2..9, b).with_head(b),
        Placement::on(a).with_layers(0..1, b).with_layers(2..3, c).with_experts(0..4, b).with_head(c),
        Placement::on(a).with_experts(1..3, b),
        Placement::on(a).with_embedding(b).with_head(c),
    ]
}

fn cpus() -> [Device; 3] {
    [0, 1, 2].map(|_| cpu(Activations::Int8))
}

fn load(file: &File, placement: &Placement) -> Box<dyn Model> {
    load_placed(&file.build(), placement).expect("the model loads")
}

#[test]
fn a_model_on_several_devices_has_the_bits_of_one() {
    for architecture in ARCHITECTURES {
        let file = File::new(architecture, BlockType::Q4_0);
        let expected = story(&*file.load(&cpu(Activations::Int8)), KvDtype::F16);
        for placement in placements(&cpus()) {
            let model = load(&file, &placement);
            assert!(story(&*model, KvDtype::F16) == expected, "{architecture}, {placement:?}");
        }
    }
}

#[test]
fn parts_live_where_they_were_placed() {
    let devices = cpus();
    let file = File::new("qwen35moe", BlockType::Q4_0);
    for placement in placements(&devices) {
        let model = load(&file, &placement);
        for name in model.named_parameters().names() {
            let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
            let weight = model.weight(name).expect("it is there");
            assert!(weight.device().same(placement.of_module(module)), "{name}");
        }
        let caches = common::caches(&*model, KvDtype::F16, 1, PAGE_LEN, 0);
        for (index, layer) in caches.layers().iter().enumerate() {
            let memory = match layer {
                CacheLayer::Kv(kv) => kv.keys(),
                CacheLayer::State(state) => state.matrix(),
            };
            assert!(memory.device().same(placement.layer(index)), "layer {index}");
        }
        assert!(model.device().same(placement.head()));
        assert_eq!(model.devices().len(), placement.devices(4).len());
    }
}

#[test]
fn bytes_of_parts_add_up() {
    for architecture in ARCHITECTURES {
        let file = File::new(architecture, BlockType::Q4_0);
        let devices = cpus();
        for placement in placements(&devices) {
            let model = load(&file, &placement);
            let parts = PartBytes::of(&*model);
            assert_eq!(parts, PartBytes::of(&*file.load(&devices[0])), "wherever it lives");
            assert_eq!(parts.is_sparse(), architecture.ends_with("moe"));
            let all: u64 = model.devices().iter().map(|device| parts.on(&placement, device)).sum();
            let twice = !placement.head().same(placement.embedding()) && parts.tied;
            assert_eq!(parts.tied, architecture == "gemma3");
            let own = model.config().weight_bytes;
            assert_eq!(all, own + if twice { parts.embedding } else { 0 }, "{architecture}, {placement:?}");
        }
    }
}

#[test]
fn a_device_computes_its_own_parts_only() {
    let devices = cpus();
    let [a, b, c] = &devices;
    let file = File::new("qwen35moe", BlockType::Q4_0);
    let placement = Placement::on(a).with_experts(1..3, b).with_layers(3..4, c);
    let model = load(&file, &placement);
    devices.iter().for_each(|device| device.profile(true));
    logits(&*model, KvDtype::F16, &ids(1, 5));
    let ops = |device: &Device, part: &str| {
        let all = device.take_profile();
        all.iter().filter(|op| op.op.contains(part)).map(|op| op.calls).sum::<u64>()
    };
    let experts = [a, b, c].map(|device| ops(device, "experts"));
    assert_eq!(experts, [2, 4, 2], "two products of experts a layer");
}

/// A step with all logits of two sequences, and what `options` ask for.
fn forward(model: &dyn Model, options: &ForwardOptions, embeddings: Option<&Tensor>) -> Vec<u32> {
    let mut caches = common::caches(model, KvDtype::F32, 2, PAGE_LEN, 0);
    let part = |len, slot| StepSequence { len, past: 0, slot, pages: vec![slot as u32] };
    let tokens = match embeddings {
        Some(rows) => StepTokens::Embeddings(rows.clone()),
        None => StepTokens::Ids([ids(1, 7), ids(2, 12)].concat()),
    };
    let line: Vec<u32> = (0..7).chain(0..12).collect();
    let lines = [line.clone(), line.clone(), line];
    let step = Step::new(tokens, lines, vec![part(7, 0), part(12, 1)], vec![3, 6, 18]).expect("sound");
    let output = model.forward_with(&step, &mut caches, options).expect("the model runs");
    let mut tensors = vec![output.logits];
    tensors.extend(output.hidden_states.into_iter().flatten());
    tensors.extend(output.attentions.into_iter().flatten().flat_map(|layer| layer.weights));
    let values = tensors.iter().flat_map(|tensor| tensor.to_vec_f32().expect("f32"));
    values.map(f32::to_bits).collect()
}

/// A pair of matrices beside every module that can have one.
fn adapter(model: &dyn Model) -> Lora {
    let mut lora = Lora::new();
    for ModuleKindAndName { kind, name } in adaptable(model) {
        let tied = name == "lm_head" && model.weight("lm_head.weight").is_err();
        let weight = if tied { "model.embed_tokens" } else { &name };
        let shape = model.weight(&format!("{weight}.weight")).expect("it is there").shape();
        let (stack, [outputs, inputs]) = match shape[..] {
            [outputs, inputs] => (None, [outputs, inputs]),
            [experts, outputs, inputs] => (Some(experts), [outputs, inputs]),
            _ => panic!("{shape:?}"),
        };
        let [outputs, inputs] =
            if kind == ModuleKind::Embedding { [inputs, outputs] } else { [outputs, inputs] };
        let matrix = |rows: usize, columns: usize, seed: usize| {
            let shape: Vec<usize> = stack.into_iter().chain([rows, columns]).collect();
            let values = (0..shape.iter().product()).map(|at| ((at * 7 + seed) % 13) as f32 / 40.0 - 0.15);
            Weight::pack(model.device(), &values.collect::<Vec<f32>>(), BlockType::F32, &shape)
        };
        let (a, b) = (matrix(2, inputs, 1).expect("A"), matrix(outputs, 2, 5).expect("B"));
        lora.add(model, &name, &a, &b, 0.5).expect("it fits");
    }
    lora
}

struct ModuleKindAndName {
    kind: ModuleKind,
    name: String,
}

fn adaptable(model: &dyn Model) -> Vec<ModuleKindAndName> {
    let kinds = [ModuleKind::Linear, ModuleKind::Embedding, ModuleKind::Experts];
    let named = model.named_modules().iter().filter(|info| kinds.contains(&info.kind));
    let named = named.filter(|info| !info.name.ends_with(".experts"));
    named.map(|info| ModuleKindAndName { kind: info.kind, name: info.name.clone() }).collect()
}

/// What interventions and outputs of all kinds give.
fn interventions(model: &dyn Model) -> Vec<Vec<u32>> {
    let plain = ForwardOptions::default();
    let asked =
        ForwardOptions { output_hidden_states: true, output_attentions: true, ..ForwardOptions::default() };
    let mut found = vec![forward(model, &plain, None), forward(model, &asked, None)];
    let width = model.config().hidden_size;
    let values: Vec<f32> = (0..19 * width).map(|at| (at % 17) as f32 / 9.0 - 0.9).collect();
    let rows = model.device().tensor_f32(&values, &[19, width]).expect("rows");
    found.push(forward(model, &plain, Some(&rows)));

    let seen = Arc::new(AtomicUsize::new(0));
    let counted = seen.clone();
    let hook = model.hooks().on("*", move |_, output: &Tensor| {
        counted.fetch_add(output.len(), Ordering::Relaxed);
        Ok(None)
    });
    found.push(forward(model, &plain, None));
    drop(hook.expect("every name"));
    found.push(vec![seen.load(Ordering::Relaxed) as u32]);

    let half = |_: &HookContext, x: &Tensor| {
        let values: Vec<f32> = x.to_vec_f32()?.iter().map(|value| value / 2.0).collect();
        Ok(x.device().tensor_f32(&values, x.shape())?)
    };
    for module in ["model.layers.2", "model.layers.2.mlp", "model.norm"] {
        let guard = model.replace(module, Arc::new(half)).expect("it can be replaced");
        found.push(forward(model, &plain, None));
        drop(guard);
    }

    model.adapters().add("all", adapter(model), 0.7).expect("a name");
    found.push(forward(model, &plain, None));
    model.adapters().remove("all").expect("it is there");

    let table = "model.embed_tokens.weight";
    let own = model.weight(table).expect("it is there");
    let values: Vec<f32> = own.to_vec_f32().expect("f32").iter().map(|value| value * 0.75).collect();
    let other = Weight::pack(own.device(), &values, BlockType::Q8_0, &own.shape()).expect("it fits");
    model.set_weight(table, other).expect("the same shape");
    found.push(forward(model, &plain, None));
    assert!(model.named_parameters().reset(table));
    found.push(forward(model, &plain, None));
    found
}

#[test]
fn interventions_on_several_devices_have_the_bits_of_one() {
    for architecture in ["qwen35moe", "gemma3"] {
        let file = File::new(architecture, BlockType::Q4_0);
        let expected = interventions(&*file.load(&cpu(Activations::Int8)));
        for (index, part) in expected.iter().enumerate().skip(1).filter(|(_, part)| part.len() > 1) {
            let same = index == 3 || index + 1 == expected.len();
            assert_eq!(*part == expected[0], same, "{architecture}: {index} changes what it should");
        }
        for placement in placements(&cpus()) {
            let found = interventions(&*load(&file, &placement));
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!(found == expected, "{architecture}, {index}: {placement:?}");
            }
        }
    }
}

#[test]
fn devices_of_different_kinds_agree() {
    // In f32: where codes are rounded, the last bit of a sum decides some of them.
    let (fast, slow) = (cpu(Activations::F32), Device::reference(Activations::F32));
    for architecture in ["qwen3moe", "qwen35"] {
        let file = File::new(architecture, BlockType::Q4_0);
        let expected = logits(&*file.load(&slow), KvDtype::F32, &ids(1, 40));
        for placement in [
            Placement::on(&fast).with_layers(2..4, &slow).with_head(&slow),
            Placement::on(&slow).with_experts(0..4, &fast),
        ] {
            let found = logits(&*load(&file, &placement), KvDtype::F32, &ids(1, 40));
            let error = nmse(found.iter().map(Vec::as_slice), expected.iter().map(Vec::as_slice));
            assert!(error < 1e-9, "{architecture}: {error:e}");
        }
    }
}

#[test]
fn weights_move_between_devices() {
    let [a, b, _] = cpus();
    let values: Vec<f32> = (0..3 * 64 * 2).map(|at| at as f32 / 100.0).collect();
    let packed = Weight::pack(&a, &values, BlockType::Q8_0, &[3, 2, 64]).expect("it fits");
    let dense = Weight::dense(&a, &values, &[6, 64]).expect("it fits");
    for weight in [packed, dense] {
        let moved = weight.to_device(&b).expect("there is room");
        assert!(moved.device().same(&b));
        assert_eq!(moved.shape(), weight.shape());
        assert_eq!(moved.to_vec_f32().expect("values"), weight.to_vec_f32().expect("values"));
    }
}

/// Two cards, where there are two (or what stands in for them, `tools/emulator` with CUDA_EMULATOR_DEVICES=2).
fn cards(activations: Activations) -> Option<[Device; 2]> {
    let card = |ordinal| match Device::cuda(ordinal, CudaOptions { activations, ..CudaOptions::default() }) {
        Ok(device) => Some(device),
        Err(Error::Cuda(error @ (CudaError::NoDriver { .. } | CudaError::NoDevice { .. }))) => {
            eprintln!("nothing is split between cards here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    };
    Some([card(0)?, card(1)?])
}

#[test]
fn two_cards_have_the_bits_of_one() {
    let Some([a, b]) = cards(Activations::Bf16) else { return };
    let file = File::new("qwen35moe", BlockType::Q4_0);
    let expected = story(&*file.load(&a), KvDtype::F16);
    for placement in [
        Placement::on(&a).with_layers(2..4, &b).with_head(&b),
        Placement::on(&b).with_experts(1..4, &a).with_embedding(&a),
    ] {
        let model = load(&file, &placement);
        let steps = Steps { kv_dtype: KvDtype::F16, sequences: 2, tokens: 75 };
        prepare(&*model, &steps).expect("kernels compile");
        let ready = [&a, &b].map(Device::loaded_kernels);
        assert!(story(&*model, KvDtype::F16) == expected, "{placement:?}");
        let experts_apart = !placement.experts(1).same(placement.layer(1));
        assert!(experts_apart || [&a, &b].map(Device::loaded_kernels) == ready, "nothing is left to compile");
    }
}

#[test]
fn a_card_takes_as_much_for_weights_as_is_planned() {
    let Some([card, other]) = cards(Activations::Bf16) else { return };
    let mut padded = 0;
    for architecture in ARCHITECTURES {
        for block_type in [BlockType::Q4_0, BlockType::Q8_0, BlockType::F16] {
            // Rows of the vocabulary, of which a last few lie alone.
            let file = File::new(architecture, block_type).with_vocab(101);
            let paper = PartBytes::of(&*file.load(&cpu(Activations::Int8)));
            for placement in
                [Placement::on(&card), Placement::on(&other).with_layers(1..3, &card).with_head(&card)]
            {
                let before = card.allocated_bytes();
                let model = load(&file, &placement);
                let taken = (card.allocated_bytes() - before) as u64;
                let planned = paper.on(&placement, &card);
                let names = model.named_parameters();
                let own = |name: &&str| model.weight(name).expect("it is there").device().same(&card);
                // Something stands behind each of them, a head that is the table among them.
                let again = !model.placement().embedding().same(&card) && paper.tied;
                let pieces = names.names().filter(own).count() + usize::from(again);
                let behind = (pieces * card.dense_bytes(0)) as u64;
                assert_eq!(planned, taken + behind, "{architecture}, {block_type}, {placement:?}");
                padded += usize::from(!placement.is_split() && taken > model.config().weight_bytes);
            }
        }
    }
    assert!(padded > ARCHITECTURES.len(), "rows are completed, which is more than a file has: {padded}");
}

#[test]
fn a_card_and_the_cpu_agree_with_the_cpu() {
    let Some([card, _]) = cards(Activations::F32) else { return };
    let host = cpu(Activations::F32);
    let file = File::new("qwen35moe", BlockType::Q4_0);
    let expected = logits(&*file.load(&host), KvDtype::F32, &ids(1, 40));
    for placement in [
        Placement::on(&host).with_layers(2..4, &card).with_head(&card),
        Placement::on(&card).with_experts(0..3, &host),
    ] {
        let model = load(&file, &placement);
        let steps = Steps { kv_dtype: KvDtype::F32, sequences: 1, tokens: 40 };
        host.profile(true);
        prepare(&*model, &steps).expect("kernels compile");
        assert_eq!(
            host.take_profile().iter().map(|op| op.calls).sum::<u64>(),
            0,
            "a rehearsal computes nothing"
        );
        let found = logits(&*model, KvDtype::F32, &ids(1, 40));
        let error = nmse(found.iter().map(Vec::as_slice), expected.iter().map(Vec::as_slice));
        assert!(error < 1e-7, "{placement:?}: {error:e}");
    }
}
