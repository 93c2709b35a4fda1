//! Steps that a card replays as graphs give the bits of steps that are launched; where there is a card (or what stands in
//! for one, `tools/emulator`).

mod common;

use common::{ARCHITECTURES, File, VOCAB, ids};
use gruff_blocks::BlockType;
use gruff_kernels::sampling::{SampleSpec, sample};
use gruff_kernels::{
    Activations, CudaError, CudaOptions, DType, Device, Error, KvDtype, PAGE_LEN, Step, StepSequence, Tensor,
};
use gruff_models::{CacheOptions, Caches, Model, Placement, Steps, load_placed, prepare};

const SEQUENCES: usize = 3;
const PAGES: usize = 12;

/// The card, with and without graphs.
fn card(graphs: bool) -> Option<Device> {
    numbered(0, graphs)
}

/// Two cards, where there are two (or CUDA_EMULATOR_DEVICES=2).
fn two_cards() -> Option<[Device; 2]> {
    Some([numbered(0, true)?, numbered(1, true)?])
}

fn numbered(ordinal: usize, graphs: bool) -> Option<Device> {
    match Device::cuda(ordinal, CudaOptions { graphs, ..CudaOptions::default() }) {
        Ok(device) => Some(device),
        Err(Error::Cuda(error @ (CudaError::NoDriver { .. } | CudaError::NoDevice { .. }))) => {
            eprintln!("nothing is recorded here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Sequences that go through a model together.
struct Run {
    model: Box<dyn Model>,
    caches: Caches,
    past: [usize; SEQUENCES],
}

impl Run {
    fn new(file: &File, device: &Device, kv_dtype: KvDtype) -> Self {
        Self::placed(file, &Placement::on(device), kv_dtype)
    }

    fn placed(file: &File, placement: &Placement, kv_dtype: KvDtype) -> Self {
        let model = load_placed(&file.build(), placement).expect("the model loads");
        let options = CacheOptions { kv_dtype, pages: SEQUENCES * PAGES, slots: SEQUENCES, rollback: 0 };
        let caches = model.new_caches(&options).expect("small caches");
        Self { model, caches, past: [0; SEQUENCES] }
    }

    /// Puts so many tokens of each sequence through, those of the first one late where ids are given: logits.
    fn step(&mut self, lens: [usize; SEQUENCES], late: Option<&Tensor>) -> Tensor {
        let step = self.next(lens, late);
        self.model.forward(&step, &mut self.caches).expect("it runs")
    }

    /// The step that comes next.
    fn next(&mut self, lens: [usize; SEQUENCES], late: Option<&Tensor>) -> Step {
        let mut tokens = Vec::new();
        let mut sequences = Vec::new();
        for (index, len) in lens.into_iter().enumerate().filter(|(_, len)| *len > 0) {
            let past = self.past[index];
            tokens.extend(&ids(index as u32, past + len)[past..]);
            // Pages lie apart.
            let pages = (0..PAGES).map(|page| (page * SEQUENCES + index) as u32).collect();
            sequences.push(StepSequence { len, past, slot: index, pages });
            self.past[index] += len;
        }
        let mut step = Step::text(tokens, sequences).expect("a step");
        if let Some(ids) = late {
            step = step.with_late_ids(ids, vec![(0, 1)]).expect("a row");
        }
        step
    }

    /// Puts a token of each sequence through and draws the next ones: logits and ids.
    fn draw(&mut self, specs: &[SampleSpec; SEQUENCES], ids: &Tensor) -> Tensor {
        let step = self.next([1; SEQUENCES], None).with_draw(specs.to_vec(), ids).expect("a draw");
        self.model.forward(&step, &mut self.caches).expect("it runs")
    }
}

/// A way to draw at random.
fn drawn() -> SampleSpec {
    SampleSpec {
        temperature: 0.8,
        top_k: 20,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        penalized: Vec::new(),
        seed: 7,
        position: 0,
    }
}

fn bits(logits: &Tensor) -> Vec<u32> {
    logits.to_vec_f32().expect("logits").into_iter().map(f32::to_bits).collect()
}

#[test]
fn replayed_steps_have_the_bits_of_launched_ones() {
    let (Some(graphs), Some(launches)) = (card(true), card(false)) else { return };
    for architecture in ARCHITECTURES {
        for kv_dtype in [KvDtype::F16, KvDtype::F32] {
            let file = File::new(architecture, BlockType::Q4_0);
            let mut runs = [&graphs, &launches].map(|device| Run::new(&file, device, kv_dtype));
            // Over borders of pages, chunks and spans; numbers of sequences come, go and come back.
            let prompts = [[5, 61, 120], [0, 2, 0], [3, 0, 9]];
            let alike = |lens, runs: &mut [Run; 2]| {
                let [replayed, launched] = runs.each_mut().map(|run| bits(&run.step(lens, None)));
                assert_eq!(replayed, launched, "{architecture} {kv_dtype}: {lens:?} at {:?}", runs[0].past);
            };
            for prompt in prompts {
                alike(prompt, &mut runs);
                for _ in 0..5 {
                    alike([1, 1, 1], &mut runs);
                }
                for _ in 0..4 {
                    alike([0, 1, 0], &mut runs);
                    alike([1, 0, 1], &mut runs);
                }
            }
            let recorded = format!("{:?}", runs[0].caches);
            assert!(recorded.contains("3 recordings"), "{recorded}");
            assert!(format!("{:?}", runs[1].caches).contains("0 recordings"));
        }
    }
}

#[test]
fn recordings_give_way_to_what_needs_memory_and_are_made_anew() {
    let (Some(graphs), Some(launches)) = (card(true), card(false)) else { return };
    let file = File::new("qwen35", BlockType::Q4_0);
    let mut runs = [&graphs, &launches].map(|device| Run::new(&file, device, KvDtype::F16));
    for _ in 0..3 {
        for _ in 0..4 {
            let [replayed, launched] = runs.each_mut().map(|run| bits(&run.step([1, 1, 1], None)));
            assert_eq!(replayed, launched);
        }
        let taken = graphs.allocated_bytes();
        assert!(graphs.zeros(DType::F32, &[1 << 50]).is_err(), "no card has so much");
        assert!(graphs.allocated_bytes() < taken);
        // Where recordings had their results there is something else now.
        let others: Vec<Tensor> = (0..8)
            .map(|_| graphs.zeros(DType::F32, &[SEQUENCES * VOCAB as usize]).expect("memory"))
            .collect();
        runs.iter_mut().for_each(|run| drop(run.step([1, 1, 1], None)));
        assert!(others.iter().all(|other| bits(other).iter().all(|bits| *bits == 0)));
    }
}

#[test]
fn recordings_share_the_memory_of_the_largest() {
    let Some(device) = card(true) else { return };
    let mut run = Run::new(&File::new("qwen35", BlockType::Q4_0), &device, KvDtype::F16);
    let taken = [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0]].map(|lens| {
        run.step(lens, None);
        let launched = device.allocated_bytes();
        run.step(lens, None);
        run.step(lens, None);
        device.allocated_bytes() - launched
    });
    assert!(format!("{:?}", run.caches).contains("3 recordings"));
    assert_eq!(taken[3..], [0, 0], "what is smaller has room");
    // Each larger one takes the place of the one before.
    assert!(taken[..3].iter().all(|bytes| *bytes > 0), "{taken:?}");
    let all = device.allocated_bytes();
    assert!(device.zeros(DType::F32, &[1 << 50]).is_err(), "no card has so much");
    assert!(
        all - device.allocated_bytes() > taken.iter().sum::<usize>(),
        "scratch memory is given back, too"
    );
}

#[test]
fn a_replay_that_is_refused_by_the_driver_is_launched() {
    // tools/checks/cuda_emulated.sh runs it with a file for it.
    let Some(faults) = std::env::var_os("CUDA_EMULATOR_FAULTS") else { return };
    let (Some(graphs), Some(launches)) = (card(true), card(false)) else { return };
    let file = File::new("qwen35", BlockType::Q4_0);
    let mut runs = [&graphs, &launches].map(|device| Run::new(&file, device, KvDtype::F16));
    for step in 0..8 {
        let [replayed, launched] = &mut runs;
        let launched = bits(&launched.step([1, 1, 1], None));
        let recordings = format!("{:?}", replayed.caches);
        assert_eq!(recordings.contains("1 recordings"), (2..=4).contains(&step), "{recordings}");
        // The next launch is that of the graph.
        std::fs::write(&faults, if step == 4 { "launch 1" } else { "" }).expect("a file");
        assert_eq!(bits(&replayed.step([1, 1, 1], None)), launched, "step {step}");
    }
}

/// Layers, ends and experts apart.
fn split([a, b]: &[Device; 2]) -> [Placement; 2] {
    [
        Placement::on(a).with_layers(2..4, b).with_head(b),
        Placement::on(b).with_layers(1..2, a).with_experts(2..4, a).with_embedding(a),
    ]
}

#[test]
fn two_cards_replay_their_parts_with_the_bits_of_launches_on_one() {
    let (Some(cards), Some(launches)) = (two_cards(), card(false)) else { return };
    for architecture in ["qwen35moe", "gemma3"] {
        let file = File::new(architecture, BlockType::Q4_0);
        for placement in split(&cards) {
            let mut replayed = Run::placed(&file, &placement, KvDtype::F16);
            let mut launched = Run::new(&file, &launches, KvDtype::F16);
            let mut alike = |lens| {
                let (ours, theirs) = (replayed.step(lens, None), launched.step(lens, None));
                assert_eq!(bits(&ours), bits(&theirs), "{architecture}, {placement:?}: {lens:?}");
            };
            // Over borders of pages and chunks.
            alike([29, 5, 62]);
            for _ in 0..4 {
                alike([1, 1, 1]);
                alike([0, 1, 0]);
            }
            alike([0, 2, 9]);
            alike([1, 1, 1]);
            let recorded = format!("{:?}", replayed.caches);
            assert!(recorded.contains("2 recordings, 7 replays"), "{recorded}");
        }
    }
}

#[test]
fn two_cards_give_recordings_back_one_by_one() {
    let (Some(cards), Some(launches)) = (two_cards(), card(false)) else { return };
    let file = File::new("qwen3moe", BlockType::Q4_0);
    let [placement, _] = split(&cards);
    let mut replayed = Run::placed(&file, &placement, KvDtype::F16);
    let mut launched = Run::new(&file, &launches, KvDtype::F16);
    let own = [0, 1].map(|card| cards[card].allocated_bytes());
    for turn in 0..8 {
        let logits = replayed.step([1, 1, 1], None);
        let before = bits(&logits);
        assert_eq!(before, bits(&launched.step([1, 1, 1], None)), "turn {turn}");
        let card = turn / 2 % 2;
        assert!(cards[card].zeros(DType::F32, &[1 << 50]).is_err(), "no card has so much");
        // What is held lies in the second one's memory.
        let gave = cards[card].allocated_bytes() == own[card];
        assert_eq!(gave, turn == 0 || card == 0, "turn {turn}");
        assert_eq!(bits(&logits), before, "turn {turn}");
    }
    let recorded = format!("{:?}", replayed.caches);
    assert!(recorded.contains("1 recordings, 7 replays"), "{recorded}");
}

#[test]
fn two_cards_hand_ids_from_the_head_to_the_embedding_table() {
    let Some(cards) = two_cards() else { return };
    let file = File::new("qwen3moe", BlockType::Q4_0);
    for placement in split(&cards) {
        let mut runs = [0, 1].map(|_| Run::placed(&file, &placement, KvDtype::F16));
        assert!(runs[0].model.takes_late_ids());
        let greedy = SampleSpec { temperature: 0.0, top_k: 0, ..drawn() };
        for turn in 0..5 {
            let next = ids(0, runs[0].past[0] + 1)[runs[0].past[0]];
            let known = placement.head().tensor_i32(&[-1, next as i32, 3], &[3]).expect("ids");
            let known = known.to_device(placement.embedding()).expect("a copy");
            let chosen = [0, 1].map(|_| placement.head().tensor_i32(&[-7, -7], &[2]).expect("ids"));
            let specs = || vec![greedy.clone(), drawn()];
            let [ours, theirs] = &mut runs;
            let step = ours.next([1, 1, 0], Some(&known)).with_draw(specs(), &chosen[0]).expect("a draw");
            drop(known);
            let late = bits(&ours.model.forward(&step, &mut ours.caches).expect("it runs"));
            let step = theirs.next([1, 1, 0], None).with_draw(specs(), &chosen[1]).expect("a draw");
            let read = bits(&theirs.model.forward(&step, &mut theirs.caches).expect("it runs"));
            assert_eq!(late, read, "turn {turn}");
            let [late, read] = chosen.map(|ids| ids.to_vec_i32().expect("ids"));
            assert_eq!(late, read, "turn {turn}");
            assert!(late.iter().all(|id| (0..VOCAB as i32).contains(id)), "{late:?}");
        }
        for run in &runs {
            assert!(format!("{:?}", run.caches).contains("1 recordings, 4 replays"));
        }
        // Ids of the other card are refused.
        let elsewhere = placement.head().tensor_i32(&[1, 1, 1], &[3]).expect("ids");
        let step = runs[0].next([1, 1, 0], Some(&elsewhere));
        let [run, _] = &mut runs;
        assert!(run.model.forward(&step, &mut run.caches).is_err());
    }
}

#[test]
fn two_cards_of_which_one_refuses_its_part_of_a_replay() {
    // tools/checks/cuda_emulated.sh runs it with a file for it.
    let Some(faults) = std::env::var_os("CUDA_EMULATOR_FAULTS") else { return };
    let (Some(cards), Some(launches)) = (two_cards(), card(false)) else { return };
    let file = File::new("qwen3moe", BlockType::Q4_0);
    let [placement, _] = split(&cards);
    for part in [1, 2] {
        let mut replayed = Run::placed(&file, &placement, KvDtype::F16);
        let mut launched = Run::new(&file, &launches, KvDtype::F16);
        for step in 0..8 {
            let launched = bits(&launched.step([1, 1, 1], None));
            let recordings = format!("{:?}", replayed.caches);
            assert_eq!(recordings.contains("1 recordings"), (2..=4).contains(&step), "{recordings}");
            let refused = if step == 4 { format!("launch {part}") } else { String::new() };
            std::fs::write(&faults, refused).expect("a file");
            let next = replayed.next([1, 1, 1], None);
            let result = replayed.model.forward(&next, &mut replayed.caches);
            std::fs::write(&faults, "").expect("a file");
            // Where nothing was done yet the step is launched, else it fails; then it can be computed anew.
            assert_eq!(result.is_err(), step == 4 && part == 2, "{result:?}");
            let result = match result {
                Ok(logits) => logits,
                Err(_) => replayed.model.forward(&next, &mut replayed.caches).expect("it is launched"),
            };
            assert_eq!(bits(&result), launched, "part {part}, step {step}");
        }
    }
}

#[test]
fn logits_that_somebody_holds_stay_as_they_are() {
    let Some(device) = card(true) else { return };
    let mut run = Run::new(&File::new("qwen35", BlockType::Q4_0), &device, KvDtype::F16);
    run.step([9, 40, 7], None);
    let held: Vec<(Tensor, Vec<u32>)> = (0..5)
        .map(|_| {
            let logits = run.step([1, 1, 1], None);
            let bits = bits(&logits);
            (logits, bits)
        })
        .collect();
    for (logits, before) in &held {
        assert_eq!(bits(logits), *before);
    }
}

#[test]
fn ids_that_stay_on_the_card_are_those_it_chose() {
    for graphs in [true, false] {
        let Some(device) = card(graphs) else { return };
        let file = File::new("qwen35moe", BlockType::Q4_0);
        let mut runs = [0, 1].map(|_| Run::new(&file, &device, KvDtype::F16));
        let spec = drawn();
        for run in &mut runs {
            run.step([6, 3, 0], None);
        }
        for _ in 0..6 {
            // The first sequence's next token is what stands in row 1.
            let next = ids(0, runs[0].past[0] + 1)[runs[0].past[0]];
            let known = device.tensor_i32(&[-1, next as i32, 3], &[3]).expect("ids");
            let [ours, theirs] = &mut runs;
            let ours = ours.step([1, 1, 0], Some(&known));
            assert_eq!(bits(&ours), bits(&theirs.step([1, 1, 0], None)));
            let chosen = device.scratch(DType::I32, &[2]).expect("ids");
            sample(&ours, &[spec.clone(), spec.clone()], &chosen).expect("it draws");
            let later = chosen.read_later().expect("a copy");
            let at_once = chosen.to_vec_i32().expect("a copy");
            assert_eq!(later.wait().expect("it arrives"), at_once);
            assert!(at_once.iter().all(|id| (0..VOCAB as i32).contains(id)));
        }
    }
}

#[test]
fn what_is_drawn_within_a_recording_is_what_is_drawn_behind_it() {
    let (Some(graphs), Some(launches)) = (card(true), card(false)) else { return };
    let file = File::new("qwen35", BlockType::Q4_0);
    let mut runs = [&graphs, &launches].map(|device| Run::new(&file, device, KvDtype::F16));
    let greedy = SampleSpec {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        penalized: Vec::new(),
        seed: 3,
        position: 0,
    };
    // Parameters are others each time, and the place of the ids is; kinds of drawing take turns.
    let mut different = Vec::new();
    for turn in 0..24_u64 {
        let random = SampleSpec {
            temperature: 0.5 + turn as f32 / 8.0,
            top_k: [0, 5, 20][turn as usize % 3],
            top_p: [1.0, 0.9][turn as usize % 2],
            min_p: [0.0, 0.05][turn as usize / 2 % 2],
            seed: turn * 77,
            position: turn,
            ..greedy.clone()
        };
        let penalized = SampleSpec {
            repetition_penalty: 1.0 + turn as f32 / 20.0,
            penalized: (0..VOCAB as u32).filter(|id| id % (turn as u32 + 2) == 1).chain([1, 1]).collect(),
            ..if turn % 2 == 0 { random.clone() } else { greedy.clone() }
        };
        let specs = match turn / 3 % 4 {
            0 => [greedy.clone(), greedy.clone(), greedy.clone()],
            1 => [random.clone(), greedy.clone(), random],
            2 => [penalized.clone(), greedy.clone(), random],
            _ => [greedy.clone(), penalized, greedy.clone()],
        };
        let mut ids = Vec::new();
        for run in &mut runs {
            let device = run.model.device().clone();
            let inside = device.tensor_i32(&[-7; SEQUENCES], &[SEQUENCES]).expect("ids");
            let logits = run.draw(&specs, &inside);
            let behind = device.scratch(DType::I32, &[SEQUENCES]).expect("ids");
            sample(&logits, &specs, &behind).expect("it draws");
            let (inside, behind) = (inside.to_vec_i32().expect("ids"), behind.to_vec_i32().expect("ids"));
            assert_eq!(inside, behind, "turn {turn}");
            ids.push((inside, bits(&logits)));
        }
        assert!(ids[0] == ids[1], "turn {turn}");
        different.push(ids.swap_remove(0).0);
    }
    different.sort();
    different.dedup();
    assert!(different.len() > 8, "{different:?}");
    let recorded = format!("{:?}", runs[0].caches);
    assert!(recorded.contains("4 recordings"), "one for each kind: {recorded}");
    // What operations would refuse is refused.
    let ids = graphs.scratch(DType::I32, &[SEQUENCES]).expect("ids");
    let wild = SampleSpec { repetition_penalty: 2.0, penalized: vec![VOCAB as u32], ..greedy };
    let step = runs[0].next([1; SEQUENCES], None).with_draw(vec![wild; SEQUENCES], &ids).expect("a draw");
    let [run, _] = &mut runs;
    assert!(run.model.forward(&step, &mut run.caches).is_err());
}

#[test]
fn ids_on_the_card_that_are_not_in_the_vocabulary_are_taken_for_0() {
    let Some(device) = card(true) else { return };
    let file = File::new("qwen35", BlockType::Q4_0);
    let mut runs = [0, 1, 2].map(|_| Run::new(&file, &device, KvDtype::F16));
    // Launched, then replayed.
    for _ in 0..4 {
        let [zero, none, wild] = [0, -1, i32::MAX].map(|id| device.tensor_i32(&[7, id], &[2]).expect("ids"));
        let [first, second, third] = &mut runs;
        let expected = bits(&first.step([1, 0, 0], Some(&zero)));
        assert_eq!(bits(&second.step([1, 0, 0], Some(&none))), expected);
        assert_eq!(bits(&third.step([1, 0, 0], Some(&wild))), expected);
    }
}

#[test]
fn ids_pages_and_slots_that_are_not_there_are_refused() {
    let Some(device) = card(true) else { return };
    let mut run = Run::new(&File::new("qwen35", BlockType::Q4_0), &device, KvDtype::F16);
    for _ in 0..3 {
        run.step([1, 1, 1], None);
    }
    let own: Vec<u32> = (0..PAGES as u32).collect();
    let far = vec![(SEQUENCES * PAGES) as u32];
    for (id, slot, pages) in
        [(VOCAB as u32, 0, &own), (1, SEQUENCES, &own), (1, 0, &far), (1, 0, &Vec::new())]
    {
        let sequence = |slot, pages: &Vec<u32>| StepSequence { len: 1, past: 3, slot, pages: pages.clone() };
        let sequences = vec![sequence(slot, pages), sequence(1, &own), sequence(2, &own)];
        let step = Step::text(vec![id, 1, 1], sequences).expect("a step");
        assert!(run.model.forward(&step, &mut run.caches).is_err(), "{id} {slot} {pages:?}");
    }
    // Ids that another device has chosen.
    let ids = Device::reference(Activations::F32).tensor_i32(&[1], &[1]).expect("ids");
    let sequence = |slot| StepSequence { len: 1, past: 3, slot, pages: own.clone() };
    let step = Step::text(vec![1; SEQUENCES], (0..SEQUENCES).map(sequence).collect()).expect("a step");
    let step = step.with_late_ids(&ids, vec![(0, 0)]).expect("a row");
    assert!(run.model.forward(&step, &mut run.caches).is_err());
}

#[test]
fn a_rehearsal_finds_the_kernels_of_all_steps() {
    let Some(device) = card(true) else { return };
    for architecture in ["qwen35moe", "gemma3"] {
        let mut run = Run::new(&File::new(architecture, BlockType::Q8_0), &device, KvDtype::F16);
        let steps = Steps { kv_dtype: KvDtype::F16, sequences: SEQUENCES, tokens: 200 };
        let taken = device.allocated_bytes();
        prepare(&*run.model, &steps).expect("they compile");
        assert_eq!(device.allocated_bytes(), taken, "a rehearsal takes no memory");
        let ready = device.loaded_kernels();
        for lens in [[1, 0, 0], [1, 1, 1], [100, 20, 3], [0, 1, 1], [150, 0, 0], [2, 7, 9], [1, 1, 1]] {
            bits(&run.step(lens, None));
        }
        assert_eq!(device.loaded_kernels(), ready, "{architecture}: nothing is left to compile");
    }
}

const _: () = assert!(PAGES * PAGE_LEN > 300, "there is room for all tokens");
