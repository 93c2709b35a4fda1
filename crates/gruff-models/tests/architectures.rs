//! Every architecture, tiny and random: the same bits however a sequence is cut into steps and batched.

mod common;

use common::{ARCHITECTURES, File, Sequence, caches, cpu, ids, logits, nmse, step};
use gruff_blocks::BlockType;
use gruff_kernels::{Activations, Device, KvDtype};

/// Runs `check` for each architecture with F32 weights on the exact path, and with Q8_0 weights on the fast one.
fn each(check: impl Fn(&str, &dyn gruff_models::Model, KvDtype)) {
    for architecture in ARCHITECTURES {
        for (block_type, activations, kv_dtype) in [
            (BlockType::F32, Activations::F32, KvDtype::F32),
            (BlockType::Q8_0, Activations::Int8, KvDtype::F16),
        ] {
            let model = File::new(architecture, block_type).load(&cpu(activations));
            check(&format!("{architecture} {block_type}"), &*model, kv_dtype);
        }
    }
}

#[test]
fn any_split_of_prefill_and_decode_gives_the_same_bits() {
    each(|name, model, kv_dtype| {
        let ids = ids(1, 140);
        let whole = logits(model, kv_dtype, &ids);
        assert!(whole.iter().flatten().all(|logit| logit.is_finite()), "{name}");
        for splits in [vec![1; 140], vec![64, 64, 12], vec![37, 1, 1, 90, 11], vec![139, 1]] {
            let mut caches = caches(model, kv_dtype, 1, ids.len(), 0);
            let mut sequences = [Sequence::new(ids.clone(), 0, 1)];
            for &len in &splits {
                step(model, &mut caches, &mut sequences, &[len]);
            }
            assert!(sequences[0].logits == whole, "{name}: {splits:?} differ from one step");
        }
    });
}

#[test]
fn a_ragged_batch_gives_each_sequence_its_own_bits() {
    each(|name, model, kv_dtype| {
        let all: Vec<Vec<u32>> = [(2, 75), (3, 9), (4, 70)].map(|(seed, len)| ids(seed, len)).into();
        let mut caches = caches(model, kv_dtype, 3, 75, 0);
        let mut sequences: Vec<Sequence> =
            all.iter().enumerate().map(|(slot, ids)| Sequence::new(ids.clone(), 2 - slot, 3)).collect();
        for lens in [[60, 1, 0], [1, 6, 65], [13, 1, 1], [1, 1, 4]] {
            step(model, &mut caches, &mut sequences, &lens);
        }
        for (sequence, ids) in sequences.iter().zip(&all) {
            assert!(sequence.logits == logits(model, kv_dtype, ids), "{name}: batched differs from alone");
        }
    });
}

#[test]
fn dropped_tokens_leave_no_trace() {
    each(|name, model, kv_dtype| {
        let ids = ids(5, 80);
        let whole = logits(model, kv_dtype, &ids);
        let mut caches = caches(model, kv_dtype, 1, 96, 8);
        let mut sequences = [Sequence::new(ids.clone(), 0, 1)];
        step(model, &mut caches, &mut sequences, &[62]);
        // Wrong guesses across a chunk border, taken back.
        sequences[0].ids.splice(62..67, [9, 8, 7, 6, 5]);
        step(model, &mut caches, &mut sequences, &[5]);
        sequences[0].truncate(62);
        sequences[0].ids = ids;
        step(model, &mut caches, &mut sequences, &[18]);
        assert!(sequences[0].logits == whole, "{name}: rolled back differs");
    });
}

#[test]
fn a_step_gives_logits_of_its_output_rows_only() {
    let model = File::new("qwen35moe", BlockType::F32).load(&cpu(Activations::F32));
    let ids = ids(6, 12);
    let whole = logits(&*model, KvDtype::F32, &ids);
    for rows in [vec![], vec![11], vec![3, 0]] {
        let mut caches = caches(&*model, KvDtype::F32, 1, 12, 0);
        let part = gruff_kernels::StepSequence { len: 12, past: 0, slot: 0, pages: vec![0] };
        let line: Vec<u32> = (0..12).collect();
        let step = gruff_kernels::Step::new(
            gruff_kernels::StepTokens::Ids(ids.clone()),
            [line.clone(), line.clone(), line],
            vec![part],
            rows.clone(),
        );
        let logits = model.forward(&step.expect("sound"), &mut caches).expect("the model runs");
        assert_eq!(logits.shape(), [rows.len(), common::VOCAB as usize]);
        let expected: Vec<f32> = rows.iter().flat_map(|row| whole[*row as usize].clone()).collect();
        assert_eq!(logits.to_vec_f32().expect("f32"), expected, "{rows:?}");
    }
}

#[test]
fn the_cpu_agrees_with_the_reference_device() {
    for architecture in ARCHITECTURES {
        let exact = File::new(architecture, BlockType::F32);
        let fast = File::new(architecture, BlockType::Q8_0);
        let ids = ids(7, 40);
        for (file, activations, kv_dtype, bar) in
            [(&exact, Activations::F32, KvDtype::F32, 1e-10), (&fast, Activations::Int8, KvDtype::F16, 1e-3)]
        {
            let expected = logits(&*file.load(&Device::reference(activations)), kv_dtype, &ids);
            let actual = logits(&*file.load(&cpu(activations)), kv_dtype, &ids);
            let nmse = nmse(actual.iter().map(|r| &**r), expected.iter().map(|r| &**r));
            assert!(nmse < bar, "{architecture} {activations:?}: NMSE {nmse:.1e}");
        }
    }
}

#[test]
fn the_reference_device_runs_step_by_step() {
    for architecture in ["llama", "qwen35"] {
        let model = File::new(architecture, BlockType::F32).load(&Device::reference(Activations::F32));
        let ids = ids(8, 70);
        let whole = logits(&*model, KvDtype::F32, &ids);
        let mut caches = caches(&*model, KvDtype::F32, 1, 70, 0);
        let mut sequences = [Sequence::new(ids, 0, 1)];
        for len in [40, 1, 29] {
            step(&*model, &mut caches, &mut sequences, &[len]);
        }
        // The reference keeps f64 within a step and f32 between steps.
        let nmse = nmse(sequences[0].logits.iter().map(|r| &**r), whole.iter().map(|r| &**r));
        assert!(nmse < 1e-11, "{architecture}: NMSE {nmse:.1e}");
    }
}

#[test]
fn sizes_are_known_before_memory_is_taken() {
    let model = File::new("qwen35", BlockType::F32).load(&cpu(Activations::F32));
    let config = model.config();
    assert_eq!(config.architecture, "qwen35");
    assert_eq!((config.num_hidden_layers, config.hidden_size, config.vocab_size), (4, 64, 96));
    assert_eq!(config.max_position_embeddings, 512);
    // Two attention layers with two heads of 32 for keys and values, f16.
    assert_eq!(config.caches.bytes_per_token(KvDtype::F16), 2 * 2 * (32 + 32) * 2);
    let options = gruff_models::CacheOptions { kv_dtype: KvDtype::F16, pages: 5, slots: 3, rollback: 4 };
    let before = model.device().allocated_bytes();
    let caches = model.new_caches(&options).expect("there is memory");
    let taken = model.device().allocated_bytes() - before;
    assert_eq!(config.caches.bytes(&options), Some(taken));
    assert_eq!(caches.layers().len(), 4);
    let parameters: usize = File::new("qwen35", BlockType::F32).tensors.iter().map(|t| t.values.len()).sum();
    assert_eq!(config.num_parameters, parameters as u64);
}
