use std::collections::BTreeMap;

use gruff_blocks::BlockType;
use gruff_kernels::{Activations, CpuOptions, CudaOptions, Device};
use gruff_models::{
    CachePlan, LayerCache, Model, ModelBase, ModelConfig, Names, PartBytes, Placement, Weight,
};

use super::{Division, SplitMode, fits_on, place};
use crate::device_plan::Planned;
use crate::paper_tests::Paper;
use crate::{Chosen, Context, EngineOptions, Error, MemoryPlan};

const LAYERS: usize = 8;
/// Bytes of a layer without experts, of a layer's experts, of either end.
const LAYER: usize = 1 << 20;
const EXPERTS: usize = 4 << 20;
const END: usize = 2 << 20;
/// Columns of packed matrices: many groups.
const COLS: usize = 4096;

/// Weights without a model.
fn paper(sparse: bool) -> Paper {
    let device = reference();
    let mut parameters = BTreeMap::new();
    let mut bytes = 0;
    let mut add = |name: String, size: usize| {
        let weight = Weight::dense(&device, &vec![0.0; size / 4], &[size / 4]).unwrap();
        parameters.insert(name, weight);
        bytes += size as u64;
    };
    add("model.embed_tokens.weight".to_owned(), END);
    add("lm_head.weight".to_owned(), END);
    for layer in 0..LAYERS {
        add(format!("model.layers.{layer}.self_attn.q_proj.weight"), LAYER);
        if sparse {
            add(format!("model.layers.{layer}.mlp.experts.up_proj.weight"), EXPERTS);
        }
    }
    let kv = LayerCache::Kv { kv_heads: 1, key_dim: 8, value_dim: 8 };
    let config = ModelConfig {
        architecture: "paper".to_owned(),
        name: None,
        num_hidden_layers: LAYERS,
        hidden_size: 8,
        vocab_size: 16,
        max_position_embeddings: 4096,
        num_parameters: bytes / 4,
        weight_bytes: bytes,
        caches: CachePlan::new(vec![kv; LAYERS]),
    };
    Paper(ModelBase::new(config, device, Names(&[])).with_named(Vec::new(), parameters))
}

fn reference() -> Device {
    Device::reference(Activations::F32)
}

fn cpu() -> Device {
    Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap()
}

/// So many bytes on each device, everything beside the weights counted.
fn options(mib: f64) -> EngineOptions {
    let memory = Some((mib * f64::from(1 << 20)) as u64);
    EngineOptions { memory, step_tokens: Some(1), context: Context::Tokens(512), ..EngineOptions::default() }
}

/// Layers on each of the devices, and experts on the last.
fn counts(placement: &Placement, devices: &[&Device]) -> (Vec<usize>, usize) {
    let own = |device: &&Device| (0..LAYERS).filter(|layer| placement.layer(*layer).same(device)).count();
    let last = devices[devices.len() - 1];
    let experts = (0..LAYERS).filter(|layer| placement.experts(*layer).same(last)).count();
    (devices.iter().map(own).collect(), experts)
}

#[test]
fn a_card_takes_what_fits_then_experts_go_then_layers() {
    let (card, cpu) = (reference(), cpu());
    let whole = (2 * END + LAYERS * (LAYER + EXPERTS)) as f64 / f64::from(1 << 20);
    let chosen = |mib: f64, sparse: bool| {
        let division = Division::default();
        // The CPU, capped as well, has room for less than all experts and layers at once where little is given.
        place(&paper(sparse), std::slice::from_ref(&card), Some(&cpu), &division, &options(mib)).unwrap()
    };
    let all = chosen(whole + 1.0, true);
    assert!(!all.placement.is_split() && all.placement.head().same(&card), "{}", all.reason);
    // 44 MiB: three layers' experts go.
    let some = chosen(whole - 9.0, true);
    assert_eq!(counts(&some.placement, &[&card, &cpu]), (vec![LAYERS, 0], 3), "{}", some.reason);
    assert!(some.placement.experts(0).same(&cpu) && some.placement.experts(LAYERS - 1).same(&card));
    assert!(some.reason.contains("experts of 3 of 8 layers"), "{}", some.reason);
    assert!(some.placement.embedding().same(&card) && some.placement.head().same(&card));
    // Dense: 12 MiB of weights on two devices of 9: the last layers on the card, with the head.
    let dense = chosen(9.0, false);
    let (layers, _) = counts(&dense.placement, &[&card, &cpu]);
    assert_eq!(layers, [6, 2], "{}", dense.reason);
    assert!(dense.placement.embedding().same(&cpu) && dense.placement.head().same(&card));
    assert!(dense.placement.layer(0).same(&cpu) && dense.placement.layer(LAYERS - 1).same(&card));
}

#[test]
fn cards_share_layers_by_what_they_have_or_are_given() {
    let (cards, cpu) = ([reference(), reference()], cpu());
    let model = paper(false);
    let split = |division: &Division, mib: f64| -> Chosen {
        place(&model, &cards, Some(&cpu), division, &options(mib)).unwrap()
    };
    let alone = |division: &Division, mib| fits_on(&model, &cards[0], &cpu, division, &options(mib));
    assert!(alone(&Division::default(), 14.0) && !alone(&Division::default(), 9.0));
    assert!(alone(&Division { gpu_layers: Some(4), ..Division::default() }, 9.0), "half of it");
    assert!(!alone(&Division { shares: vec![1.0, 1.0], ..Division::default() }, 14.0), "both are wanted");
    let one = split(&Division::default(), 14.0);
    assert!(!one.placement.is_split(), "it fits on one: {}", one.reason);
    let two = split(&Division::default(), 9.0);
    let (layers, _) = counts(&two.placement, &[&cards[0], &cards[1], &cpu]);
    assert_eq!((layers[0] + layers[1], layers[2]), (LAYERS, 0), "{}", two.reason);
    assert!(layers[0].abs_diff(layers[1]) <= 2, "{layers:?}");
    assert!(two.placement.head().same(&cards[1]) && two.placement.embedding().same(&cards[0]));
    let uneven = split(&Division { shares: vec![3.0, 1.0], ..Division::default() }, 14.0);
    let (layers, _) = counts(&uneven.placement, &[&cards[0], &cards[1], &cpu]);
    assert!(layers[0] > layers[1] && layers[0] + layers[1] == LAYERS, "{layers:?}");
    let none = split(&Division { shares: vec![0.0, 1.0], ..Division::default() }, 14.0);
    assert_eq!(counts(&none.placement, &[&cards[0], &cards[1], &cpu]).0, [0, LAYERS, 0]);
}

#[test]
fn as_few_cards_are_used_as_have_room() {
    let (cards, cpu) = ([reference(), reference(), reference()], cpu());
    let used = |sparse: bool, division: &Division, host: Option<&Device>, mib: f64| {
        let chosen = place(&paper(sparse), &cards, host, division, &options(mib)).unwrap();
        let on = |card: &&Device| chosen.placement.devices(LAYERS).iter().any(|device| device.same(card));
        (cards.iter().filter(on).count(), chosen.reason)
    };
    let layers = |count| Division { gpu_layers: Some(count), ..Division::default() };
    // Four layers and the head are 6 MiB; all with both ends 12, 44 with experts.
    assert_eq!(used(false, &layers(5), Some(&cpu), 8.0).0, 1);
    assert_eq!(used(false, &layers(9), Some(&cpu), 14.0).0, 1);
    assert_eq!(used(false, &layers(9), Some(&cpu), 8.5).0, 2);
    assert_eq!(used(false, &layers(9), None, 14.0).0, 3, "cards that are named alone are all used");
    let experts = Division { cpu_moe: Some(LAYERS), ..Division::default() };
    assert_eq!(used(true, &experts, Some(&cpu), 100.0).0, 1);
    assert_eq!(used(true, &Division { cpu_moe: Some(2), ..Division::default() }, Some(&cpu), 25.0).0, 2);
    let (count, reason) = used(true, &Division::default(), Some(&cpu), 25.0);
    assert_eq!((count, reason.contains("2 of 3 cards")), (2, true), "{reason}");
    let shares = Division { shares: vec![1.0, 1.0, 1.0], ..Division::default() };
    assert_eq!(used(false, &shares, Some(&cpu), 100.0).0, 3, "who gives shares wants all");
    // A share for the only card says nothing new: the whole model is on it.
    let one = Division { shares: vec![2.0], ..Division::default() };
    let chosen = place(&paper(true), &cards[..1], Some(&cpu), &one, &options(100.0)).unwrap();
    assert!(!chosen.placement.is_split() && chosen.placement.head().same(&cards[0]), "{}", chosen.reason);
}

#[test]
fn what_is_asked_for_is_done_or_refused() {
    let (card, cpu) = (reference(), cpu());
    let cards = std::slice::from_ref(&card);
    let ask = |gpu_layers: Option<usize>, cpu_moe: Option<usize>, sparse: bool, mib: f64| {
        let division = Division { gpu_layers, cpu_moe, ..Division::default() };
        place(&paper(sparse), cards, Some(&cpu), &division, &options(mib)).map(|chosen| chosen.placement)
    };
    let three = ask(Some(3), None, false, 100.0).unwrap();
    assert_eq!(counts(&three, &[&card, &cpu]).0, [2, 6], "the head is one of the three");
    let experts = ask(None, Some(5), true, 100.0).unwrap();
    assert_eq!(counts(&experts, &[&card, &cpu]), (vec![LAYERS, 0], 5));
    assert!(!ask(Some(0), None, false, 100.0).unwrap().is_split());
    assert!(!ask(Some(99), None, false, 100.0).unwrap().is_split(), "more than there are is all");
    let refused = |result: Result<Placement, Error>, words: &[&str]| {
        let message = result.unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    refused(ask(None, Some(1), false, 100.0), &["no experts"]);
    refused(ask(Some(9), None, true, 30.0), &["not enough memory", "44.0 MiB", "30.0 MiB available"]);
    refused(ask(None, None, true, 3.0), &["not enough memory"]);
    let division = Division { gpu_layers: Some(2), ..Division::default() };
    refused(
        place(&paper(false), cards, None, &division, &options(100.0)).map(|c| c.placement),
        &["cuda,cpu"],
    );
    for shares in [vec![1.0, 1.0], vec![-1.0], vec![f64::NAN], vec![0.0]] {
        let division = Division { shares, ..Division::default() };
        refused(
            place(&paper(false), cards, None, &division, &options(100.0)).map(|c| c.placement),
            &["tensor_split"],
        );
    }
}

#[test]
fn a_card_that_gives_less_than_it_says_gets_less() {
    let (cards, cpu) = ([reference(), reference()], cpu());
    // Of one card only 25 MiB could be had, whatever it says.
    let name = cards[0].name().to_owned();
    let limited = EngineOptions { device_memory: vec![(name, 25 << 20)], ..options(100.0) };
    let chosen = |options: &EngineOptions| {
        place(&paper(true), &cards[..1], Some(&cpu), &Division::default(), options).unwrap()
    };
    assert!(!chosen(&options(100.0)).placement.is_split());
    let Chosen { placement, reason } = chosen(&limited);
    assert_eq!(counts(&placement, &[&cards[0], &cpu]), (vec![LAYERS, 0], 5), "{reason}");
    assert!(reason.contains("25.0 MiB"), "{reason}");
    // All of that may be used, also where something has to stay free of other devices.
    let free = EngineOptions { memory: None, ..limited.clone() };
    assert_eq!(counts(&chosen(&free).placement, &[&cards[0], &cpu]).1, 5);
    let plan = MemoryPlan::placed(&paper(true), &placement, &limited).unwrap();
    assert_eq!(plan.devices[0].available, Some(25 << 20));
    let refused = place(&paper(true), &cards[..1], None, &Division::default(), &limited).unwrap_err();
    assert!(refused.to_string().contains("25.0 MiB available"), "{refused}");
}

#[test]
fn a_plan_tells_the_sum_of_each_device() {
    let (card, cpu) = (reference(), cpu());
    let model = paper(true);
    let placement = Placement::on(&card).with_experts(0..LAYERS, &cpu);
    let plan = MemoryPlan::placed(&model, &placement, &options(100.0)).unwrap();
    let [own, host] = plan.devices.as_slice() else { panic!("{plan}") };
    assert_eq!(own.weights, (2 * END + LAYERS * LAYER) as u64);
    assert_eq!(host.weights, (LAYERS * EXPERTS) as u64);
    // Keys and values of 512 tokens in two bytes, none on the CPU.
    assert_eq!((own.kv, host.kv), ((LAYERS * 512 * 2 * 8 * 2) as u64, 0));
    assert_eq!(plan.kv, own.kv);
    assert_eq!(plan.weights, own.weights + host.weights);
    assert_eq!(plan.total(), own.total() + host.total());
    let words = plan.to_string();
    assert!(
        words.contains("12.0 MiB") && words.contains("32.0 MiB") && words.contains("100.0 MiB available"),
        "{words}"
    );
    assert_eq!(words.matches(" = ").count(), 3, "{words}");
    // Neither has room for the other's part: each is held to its own.
    assert!(MemoryPlan::placed(&model, &placement, &options(33.0)).is_ok());
    assert!(MemoryPlan::placed(&model, &placement, &options(31.0)).is_err());
}

#[test]
fn matrices_are_shared_out_among_cards_alone() {
    let (model, host) = (paper(false), cpu());
    let cards = [reference(), reference()];
    let tensor = || Division { split_mode: SplitMode::Tensor, ..Division::default() };
    let chosen = place(&model, &cards, Some(&host), &tensor(), &options(64.0)).unwrap();
    let Chosen { placement, reason } = chosen;
    assert!(reason.contains("shared out among 2 cards"), "{reason}");
    assert_eq!(placement.ranks().len(), 2);
    assert!(placement.describe(LAYERS, false).starts_with("tensor parallel: "));
    let plan = MemoryPlan::placed(&model, &placement, &options(64.0)).unwrap();
    let [first, second] = plan.devices.as_slice() else { panic!("{plan}") };
    let kv = LayerCache::Kv { kv_heads: 1, key_dim: 8, value_dim: 8 };
    let each = (kv.bytes_per_token(options(64.0).kv_dtype) * LAYERS * plan.cache_tokens) as u64;
    assert_eq!((first.kv, second.kv, plan.kv), (each, each, 2 * each), "each has the only head");
    assert_eq!(first.weights, second.weights);

    for (division, cards, words) in [
        (Division { gpu_layers: Some(3), ..tensor() }, &cards[..], "--gpu-layers"),
        (Division { cpu_moe: Some(1), ..tensor() }, &cards, "--n-cpu-moe"),
        (Division { shares: vec![1.0, 2.0], ..tensor() }, &cards, "--tensor-split"),
        (tensor(), &cards[..1], "one card"),
        (tensor(), &cards[..0], "no card"),
    ] {
        let told = place(&model, cards, Some(&host), &division, &options(64.0)).unwrap_err().to_string();
        assert!(told.contains(words) && told.contains("tensor"), "{told}");
    }
    let told = place(&model, &cards, Some(&host), &tensor(), &options(0.5)).unwrap_err();
    assert!(matches!(told, Error::Memory(_)), "{told}");
}

/// Weights that a file has in few bytes: a matrix of 12 rows a layer, of which a card completes 16.
fn packed(device: &Device) -> Paper {
    let Paper(base) = paper(false);
    let mut parameters = BTreeMap::new();
    let mut bytes = 0;
    for layer in 0..LAYERS {
        let values = vec![1.0; 12 * COLS];
        let weight = Weight::pack(device, &values, BlockType::Q4_K, &[12, COLS]).unwrap();
        bytes += weight.bytes().unwrap().len() as u64;
        parameters.insert(format!("model.layers.{layer}.self_attn.q_proj.weight"), weight);
    }
    let config = ModelConfig { weight_bytes: bytes, ..base.config };
    Paper(ModelBase::new(config, device.clone(), Names(&[])).with_named(Vec::new(), parameters))
}

#[test]
fn what_a_card_takes_is_planned_for_it() {
    // Where there is one, or what stands in for it (`tools/emulator`).
    let Ok(card) = Device::cuda(0, CudaOptions::default()) else { return };
    let (host, own) = (packed(&cpu()), packed(&card));
    let options = EngineOptions { step_tokens: Some(64), ..options(1024.0) };
    let plan = |model: &Paper, placement: &Placement| {
        MemoryPlan::placed(model, placement, &options).unwrap().devices.remove(0)
    };
    let on_card = plan(&host, &Placement::on(&card));
    let file = host.0.config.weight_bytes;
    // 16 rows for 12, and what stands behind each matrix.
    assert_eq!(on_card.weights, file / 12 * 16 + (LAYERS * card.dense_bytes(0)) as u64);
    assert_eq!(on_card, plan(&own, &Placement::on(&card)), "before it is copied there, and then");
    let on_host = plan(&host, &Placement::on(&cpu()));
    assert_eq!(on_host.weights, file);
    // Sums of products that blocks of the card leave for each other; of recorded steps once more.
    let products = card.product_bytes(BlockType::Q4_K, [12, COLS], 64) as u64;
    assert!(products > 0);
    assert_eq!(on_card.scratch, on_host.scratch + products);
    let sequences = card.recorded_sequences(options.max_sequences);
    let recorded = card.product_bytes(BlockType::Q4_K, [12, COLS], sequences) as u64;
    assert_eq!(on_card.recordings > recorded, sequences > 0);
}

#[test]
fn a_step_is_shortened_before_a_plan_is_refused_or_a_context_cut() {
    let device = cpu();
    let (model, placement) = (paper(false), Placement::on(&device));
    let parts = PartBytes::of(&model);
    let plan = |told: Option<usize>, long: usize, memory: u64, context: Context| {
        let options =
            EngineOptions { memory: Some(memory), step_tokens: told, context, ..EngineOptions::default() };
        let mut planned = Planned::new(model.config(), &parts, &placement, &options);
        // As a card would have it.
        planned.tokens.0 = long;
        MemoryPlan::of(planned, &options)
    };
    let context = Context::Tokens(512);
    let needed = |tokens| plan(None, tokens, u64::MAX, context).unwrap().total();
    let (short, long) = (needed(512), needed(2048));
    assert!(short < long);
    assert_eq!(plan(None, 2048, long, context).unwrap().step_tokens, 2048);
    assert_eq!(plan(None, 2048, long - 1, context).unwrap().step_tokens, 1024);
    assert_eq!(plan(None, 2048, short, context).unwrap().step_tokens, 512);
    assert!(plan(None, 2048, short - 1, context).is_err());
    assert!(plan(Some(2048), 2048, long - 1, context).is_err(), "what was asked for stays");
    let auto = plan(None, 2048, long - 1, Context::Auto).unwrap();
    assert_eq!(auto.context, plan(None, 512, long - 1, Context::Auto).unwrap().context);
}
