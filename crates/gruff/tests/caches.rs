//! Caches that the user holds: copied, cropped, saved and loaded, on a hybrid model.

use std::path::PathBuf;

use gruff::{AutoModelForCausalLM, Cache, Dtype, Weight};
use proptest::prelude::*;
use tempfile::TempDir;

#[path = "../examples/tiny_random/model.rs"]
mod tiny;

const CAPACITY: usize = 256;

fn model() -> (TempDir, AutoModelForCausalLM) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    tiny::write(&path).unwrap();
    let model = AutoModelForCausalLM::from_pretrained(path.to_str().unwrap()).load().unwrap();
    (folder, model)
}

fn ids(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * i * 7 + i * (seed + 3) + seed * 29) % 256).collect()
}

/// Two sequences of 100 and 37 tokens.
fn filled(model: &AutoModelForCausalLM) -> Cache {
    let mut cache = model.new_cache(2, CAPACITY).unwrap();
    model.forward(vec![ids(1, 60), ids(2, 37)], &mut cache).unwrap();
    model.forward(vec![ids(1, 100)[60..].to_vec(), Vec::new()], &mut cache).unwrap();
    cache
}

/// The logits behind some more tokens of both sequences, in two steps.
fn go_on(model: &AutoModelForCausalLM, cache: &mut Cache) -> Vec<f32> {
    let mut logits = Vec::new();
    for seed in [5, 6] {
        let batch = cache.batch();
        let output = model.forward(vec![ids(seed, 3); batch], cache).unwrap();
        (0..batch).for_each(|sequence| logits.extend_from_slice(output.logits(sequence)));
    }
    logits
}

#[test]
fn sequences_go_on_as_they_would_alone() {
    let (_folder, model) = model();
    let mut cache = filled(&model);
    assert_eq!((cache.len(0), cache.len(1), cache.tokens(0)), (100, 37, ids(1, 100).as_slice()));
    let logits = go_on(&model, &mut cache);
    let mut alone = model.new_cache(1, CAPACITY).unwrap();
    model.forward(ids(2, 37), &mut alone).unwrap();
    model.forward(ids(5, 3), &mut alone).unwrap();
    let output = model.forward(ids(6, 3), &mut alone).unwrap();
    let width = output.logits(0).len();
    assert!(output.logits(0) == &logits[3 * width..]);
}

#[test]
fn copies_are_caches_of_their_own() {
    let (_folder, model) = model();
    let mut cache = filled(&model);
    let mut copy = cache.try_clone().unwrap();
    let mut twice = cache.select(&[1, 1, 0]).unwrap();
    let logits = go_on(&model, &mut cache);
    assert!(go_on(&model, &mut copy) == logits, "the original went on first");
    let width = logits.len() / 4;
    let again = go_on(&model, &mut twice);
    assert!(again[..width] == logits[width..2 * width] && again[2 * width..3 * width] == logits[..width]);
    assert!(cache.select(&[2]).is_err() && cache.select(&[]).is_err());
}

#[test]
fn a_cropped_sequence_is_a_shorter_one() {
    let (_folder, model) = model();
    let mut cache = filled(&model);
    let untouched = cache.try_clone().unwrap();
    // Over the border of a chunk of 64.
    cache.crop(0, 50).unwrap();
    let mut short = model.new_cache(2, CAPACITY).unwrap();
    model.forward(vec![ids(1, 50), ids(2, 37)], &mut short).unwrap();
    assert!(go_on(&model, &mut cache) == go_on(&model, &mut short));
    let mut cache = untouched;
    let error = cache.crop(0, 30).unwrap_err().to_string();
    assert!(error.contains("reach back 64 tokens from token 100"), "{error}");
    assert!(cache.crop(0, 101).is_err() && cache.crop(2, 1).is_err());
    cache.crop(0, 0).unwrap();
    cache.clear(1).unwrap();
    assert!(cache.is_empty());
    let mut new = model.new_cache(2, CAPACITY).unwrap();
    assert!(go_on(&model, &mut cache) == go_on(&model, &mut new), "what was there leaves no trace");
}

#[test]
fn a_saved_cache_goes_on_with_the_same_bits() {
    let (folder, model) = model();
    let path = folder.path().join("two.cache");
    let mut cache = filled(&model);
    cache.save(&model, &path).unwrap();
    let mut loaded = Cache::load(&model, &path, CAPACITY).unwrap();
    assert_eq!(loaded.tokens(0), cache.tokens(0));
    // Room for more, or for just what is there.
    let mut wider = Cache::load(&model, &path, 300).unwrap();
    Cache::load(&model, &path, 100).unwrap();
    let logits = go_on(&model, &mut cache);
    assert!(go_on(&model, &mut loaded) == logits && go_on(&model, &mut wider) == logits);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left");
}

fn refused(model: &AutoModelForCausalLM, path: &PathBuf, capacity: usize) -> String {
    let error = Cache::load(model, path, capacity).unwrap_err().to_string();
    assert!(error.contains("two.cache"), "{error}");
    error
}

#[test]
fn a_cache_of_another_model_is_refused() {
    let (folder, model) = model();
    let path = folder.path().join("two.cache");
    filled(&model).save(&model, &path).unwrap();
    let file = folder.path().join("tiny.gguf");
    let exact =
        AutoModelForCausalLM::from_pretrained(file.to_str().unwrap()).dtype(Dtype::F32).load().unwrap();
    assert!(refused(&exact, &path, CAPACITY).contains("another model"));
    assert!(refused(&model, &path, 99).contains("capacity"));
    let name = "model.layers.1.mlp.up_proj.weight";
    let weight = model.weight(name).unwrap();
    let zeros = vec![0.0; weight.shape().iter().product()];
    let zeros = Weight::pack(model.device(), &zeros, weight.block_type(), &weight.shape()).unwrap();
    model.set_weight(name, zeros).unwrap();
    assert!(refused(&model, &path, CAPACITY).contains("another model"));
    model.set_weight(name, weight).unwrap();
    Cache::load(&model, &path, CAPACITY).unwrap();
    assert!(refused(&model, &folder.path().join("no-two.cache"), CAPACITY).contains("cannot be read"));
}

#[test]
fn a_damaged_cache_is_refused() {
    let (folder, model) = model();
    let path = folder.path().join("two.cache");
    filled(&model).save(&model, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let check = |change: &dyn Fn(&mut Vec<u8>), expected: &str| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let error = refused(&model, &path, CAPACITY);
        assert!(error.contains(expected), "{expected}: {error}");
    };
    check(&|bytes| bytes[0] = b'G', "no cache");
    check(&|bytes| bytes[8] = 9, "version 9");
    check(&|bytes| bytes[15] = 255, "header");
    check(&|bytes| bytes[20] = b'}', "damaged header");
    check(&|bytes| bytes.truncate(12), "too short");
    check(&|bytes| bytes.truncate(bytes.len() - 1), "damaged");
    check(&|bytes| bytes.push(0), "damaged");
    check(
        &|bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        },
        "checksum",
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_change_goes_unnoticed(at in any::<prop::sample::Index>(), change in 1_u8..) {
        let (folder, model) = model();
        let path = folder.path().join("two.cache");
        let mut cache = model.new_cache(1, 64).unwrap();
        model.forward(ids(1, 5), &mut cache).unwrap();
        cache.save(&model, &path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        std::fs::write(&path, bytes).unwrap();
        prop_assert!(Cache::load(&model, &path, 64).is_err());
    }
}

#[test]
fn what_cannot_be_honoured_is_refused() {
    let (_folder, model) = model();
    assert!(model.new_cache(0, 8).is_err());
    assert!(model.new_cache(1, 100_000).is_err(), "the model was trained for 512");
    let mut cache = model.new_cache(1, 8).unwrap();
    let error =
        |tokens: Vec<Vec<u32>>, cache: &mut Cache| model.forward(tokens, cache).unwrap_err().to_string();
    assert!(error(vec![vec![1], vec![2]], &mut cache).contains("2 sequences"));
    assert!(error(vec![Vec::new()], &mut cache).contains("at least one"));
    assert!(error(vec![vec![999_999]], &mut cache).contains("outside the vocabulary"));
    assert!(error(vec![vec![1; 9]], &mut cache).contains("do not fit behind 0"));
    assert!(cache.is_empty());
}
