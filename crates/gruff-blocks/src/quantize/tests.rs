//! What quantized rows must hold, for every type.

use proptest::prelude::*;

use crate::{BlockType, Error, synthetic};

/// Rows that are a multiple of every block.
const ROW: usize = 1024;

fn all_types() -> impl Iterator<Item = BlockType> {
    BlockType::ALL.iter().copied().filter(|block_type| block_type.can_quantize())
}

/// Values with a near-normal distribution, the same deviation throughout.
fn normal(count: usize, seed: u64) -> Vec<f32> {
    let mut bytes = vec![0; 4 * count];
    synthetic::fill_blocks(BlockType::F32, seed, 0, 0.04..0.0401, &mut bytes);
    BlockType::F32.unpack_to_vec(&bytes).unwrap()
}

fn round_trip(block_type: BlockType, values: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
    let mut packed = vec![0; block_type.row_bytes(values.len()).unwrap()];
    block_type.quantize(values, ROW, importance, &mut packed).unwrap();
    block_type.unpack_to_vec(&packed).unwrap()
}

/// Sum of squared differences, each times the weight of its column.
fn error(before: &[f32], after: &[f32], weight: impl Fn(usize) -> f64) -> f64 {
    let differences = before.iter().zip(after).enumerate();
    differences.map(|(i, (a, b))| weight(i % ROW) * f64::from(a - b).powi(2)).sum()
}

/// Root mean square error of normal values, as a share of their deviation: a little above what was measured.
const ERRORS: &[(BlockType, f64)] = &[
    (BlockType::F32, 0.0),
    (BlockType::F64, 0.0),
    (BlockType::F16, 0.0002163),
    (BlockType::BF16, 0.00172),
    (BlockType::Q8_0, 0.005222),
    (BlockType::Q8_1, 0.005222),
    (BlockType::Q8_K, 0.006396),
    (BlockType::Q6_K, 0.01745),
    (BlockType::Q5_K, 0.03466),
    (BlockType::Q5_1, 0.03761),
    (BlockType::Q5_0, 0.04167),
    (BlockType::Q4_K, 0.0702),
    (BlockType::IQ4_NL, 0.07459),
    (BlockType::IQ4_XS, 0.07503),
    (BlockType::Q4_1, 0.07775),
    (BlockType::Q4_0, 0.08431),
    (BlockType::NVFP4, 0.09212),
    (BlockType::MXFP4, 0.1127),
    (BlockType::IQ3_S, 0.1318),
    (BlockType::Q3_K, 0.1469),
    (BlockType::IQ3_XXS, 0.1828),
    (BlockType::IQ2_S, 0.2449),
    (BlockType::Q2_K, 0.2811),
    (BlockType::IQ2_XS, 0.2987),
    (BlockType::IQ2_XXS, 0.3405),
    (BlockType::IQ1_M, 0.438),
    (BlockType::TQ1_0, 0.4314),
    (BlockType::TQ2_0, 0.4314),
    (BlockType::Q2_0, 0.3522),
    (BlockType::IQ1_S, 0.474),
    (BlockType::Q1_0, 0.6023),
];

#[test]
fn normal_values_lose_what_was_measured() {
    let values = normal(64 * ROW, 3);
    let size = error(&values, &vec![0.0; values.len()], |_| 1.0);
    let mut wrong = Vec::new();
    for block_type in all_types() {
        let (_, most) = ERRORS.iter().find(|(of, _)| *of == block_type).expect("every type has a row");
        let share = (error(&values, &round_trip(block_type, &values, None), |_| 1.0) / size).sqrt();
        // A type that loses much less than expected has a row that says nothing.
        if share > *most || share < 0.9 * most {
            wrong.push(format!("{block_type} loses {share:.5} where {most} is expected"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn waves_stay_within_the_thresholds_of_llama_cpp() {
    // Its test-quantize-fns: 4096 values of a cosine above zero, root of the summed squares over the number of values.
    let values: Vec<f32> = (0..4096).map(|i| 0.1 + 2.0 * (i as f32).cos()).collect();
    for block_type in all_types() {
        use BlockType::*;
        let most = match block_type {
            Q1_0 => 0.025,
            TQ1_0 | TQ2_0 | Q2_0 => 0.01,
            Q2_K | IQ2_S => 0.0075,
            Q3_K | IQ3_S => 0.004,
            IQ3_XXS => 0.005,
            NVFP4 => 0.003,
            // Not in that test, which has no importance to give.
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS => 0.015,
            _ => 0.002,
        };
        let found = error(&values, &round_trip(block_type, &values, None), |_| 1.0).sqrt() / 4096.0;
        assert!(found < most, "{block_type}: {found}");
    }
}

#[test]
fn importance_lowers_the_error_that_it_weighs() {
    let values = normal(32 * ROW, 5);
    let importance: Vec<f32> = (0..ROW).map(|i| ((i * 37 % 101) as f32 / 20.0 - 2.5).exp()).collect();
    let weight = |i: usize| f64::from(importance[i]);
    for block_type in all_types().filter(|block_type| !block_type.is_scalar()) {
        let plain = error(&values, &round_trip(block_type, &values, None), weight);
        let weighed = error(&values, &round_trip(block_type, &values, Some(&importance)), weight);
        match block_type {
            BlockType::Q8_0 | BlockType::Q8_1 | BlockType::Q8_K => assert_eq!(plain, weighed),
            _ => assert!(weighed < 0.995 * plain, "{block_type}: {}", weighed / plain),
        }
    }
}

#[test]
fn rows_do_not_depend_on_their_neighbours() {
    let values = normal(3 * ROW, 7);
    let importance: Vec<f32> = (0..ROW).map(|i| 1.0 + (i % 7) as f32).collect();
    for block_type in all_types() {
        for importance in [None, Some(&importance[..])] {
            let together = round_trip(block_type, &values, importance);
            let apart: Vec<f32> =
                values.chunks(ROW).flat_map(|row| round_trip(block_type, row, importance)).collect();
            assert!(together == apart, "{block_type}");
        }
    }
}

#[test]
fn values_that_a_type_can_hold_come_back() {
    // Ternary weights, as models that are trained so have them.
    let ternary: Vec<f32> = (0..ROW).map(|i| 0.0625 * ((i * i + i / 3) % 3) as f32 - 0.0625).collect();
    for block_type in all_types().filter(|t| !matches!(t, BlockType::Q1_0)) {
        let after = round_trip(block_type, &ternary, None);
        let lost = error(&ternary, &after, |_| 1.0) / error(&ternary, &[0.0; ROW], |_| 1.0);
        let most = match block_type {
            BlockType::TQ1_0 | BlockType::TQ2_0 | BlockType::Q2_0 => 1e-12,
            BlockType::MXFP4 => 1e-12,
            _ => 0.2,
        };
        assert!(lost <= most, "{block_type}: {lost}");
    }
    for block_type in all_types() {
        let zeros = round_trip(block_type, &[0.0; ROW], None);
        assert!(zeros.iter().all(|value| *value == 0.0), "{block_type}");
        let ones = [-1.0; ROW];
        let lost = error(&ones, &round_trip(block_type, &ones, None), |_| 1.0) / ROW as f64;
        // Few entries of the smaller books have all values alike.
        let most = if block_type.name().starts_with("IQ") { 0.15 } else { 0.003 };
        assert!(lost < most, "{block_type}: {lost}");
    }
}

#[test]
fn what_cannot_be_packed_is_named() {
    let mut out = [0; 144];
    let mut values = [0.5; 256];
    let row_length = BlockType::Q4_K.quantize(&values[..32], 32, None, &mut out).unwrap_err();
    assert!(matches!(row_length, Error::RowLength { block_type: BlockType::Q4_K, values: 32 }));
    assert!(BlockType::Q4_K.quantize(&values, 256, None, &mut out[..143]).is_err());
    assert!(
        BlockType::I8.quantize(&values, 256, None, &mut [0; 256]).unwrap_err().to_string().contains("I8")
    );
    for importance in [&[1.0; 32][..], &[f32::NAN; 256], &[-1.0; 256]] {
        let error = BlockType::Q4_K.quantize(&values, 256, Some(importance), &mut out).unwrap_err();
        assert!(matches!(error, Error::Importance { .. }), "{error}");
    }
    // Importance of zero throughout says nothing.
    BlockType::Q4_K.quantize(&values, 256, Some(&[0.0; 256]), &mut out).unwrap();
    values[100] = f32::NAN;
    let error = BlockType::Q4_K.quantize(&values, 256, None, &mut out).unwrap_err();
    assert_eq!(error, Error::NotFinite { at: 100, value: "NaN".to_owned() });
    values[100] = 3e38;
    let error = BlockType::Q4_K.quantize(&values, 256, None, &mut out).unwrap_err();
    assert!(matches!(error, Error::TooLarge { block_type: BlockType::Q4_K, at: 0, .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_numbers_give_finite_blocks_or_an_error(
        seed in proptest::collection::vec(any::<u32>(), 1..40),
        exponent in -140_i32..128,
        holes in any::<bool>(),
    ) {
        // Numbers of any bits, brought to one scale or left as they are.
        let values: Vec<f32> = (0..ROW).map(|i| {
            let bits = seed[i % seed.len()].rotate_left(i as u32).wrapping_mul(2 * i as u32 + 1);
            let value = f32::from_bits(bits);
            match (holes, value.is_finite()) {
                (true, _) if i % 3 > 0 => 0.0,
                (false, true) => value,
                _ => (bits as i32 as f32 / 2e9) * 2_f32.powi(exponent),
            }
        }).collect();
        let importance: Vec<f32> = values.iter().map(|value| value.abs().min(1e30)).collect();
        for block_type in all_types() {
            for importance in [None, Some(&importance[..])] {
                let mut packed = vec![0; block_type.row_bytes(ROW).unwrap()];
                match block_type.quantize(&values, ROW, importance, &mut packed) {
                    Ok(()) => {
                        let unpacked = block_type.unpack_to_vec(&packed).unwrap();
                        prop_assert!(unpacked.iter().all(|value| value.is_finite()), "{}", block_type);
                    }
                    Err(error) => prop_assert!(matches!(error, Error::TooLarge { .. }), "{}", error),
                }
            }
        }
    }
}
