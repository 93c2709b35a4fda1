//! Quantizing small files: types, values, importance, and what is refused.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use gruff_blocks::{BlockType, synthetic};
use gruff_convert::quantize::{ImportanceMatrix, Plan, QuantizeOptions, TensorType, quantize};
use gruff_convert::{Error, Progress};
use gruff_gguf::{Gguf, Metadata, Strings, Value, Writer};
use tempfile::TempDir;

/// Four layers of a model with two query heads a key-value head, and a stack of three experts.
struct Model {
    folder: TempDir,
    metadata: Metadata,
    tensors: Vec<(String, Vec<u64>, Vec<f32>)>,
}

fn values(count: u64, seed: u64) -> Vec<f32> {
    let mut bytes = vec![0; 4 * count as usize];
    synthetic::fill_blocks(BlockType::F32, seed, 0, 0.05..0.06, &mut bytes);
    BlockType::F32.unpack_to_vec(&bytes).unwrap()
}

impl Model {
    fn new() -> Self {
        let mut metadata = Metadata::new();
        metadata.insert("general.architecture", "llama");
        metadata.insert("general.file_type", 0_u32);
        metadata.insert("llama.block_count", 4_u32);
        metadata.insert("llama.attention.head_count", 4_u32);
        metadata.insert("llama.attention.head_count_kv", 2_u32);
        metadata.insert("tokenizer.ggml.tokens", ["a", "b"].iter().collect::<Strings>());
        let mut model = Model { folder: tempfile::tempdir().unwrap(), metadata, tensors: Vec::new() };
        model.add("token_embd.weight", &[512, 64]);
        model.add("output_norm.weight", &[512]);
        for layer in 0..4 {
            model.add(&format!("blk.{layer}.attn_norm.weight"), &[512]);
            model.add(&format!("blk.{layer}.attn_v.weight"), &[512, 32]);
            model.add(&format!("blk.{layer}.attn_q.weight"), &[512, 64]);
            model.add(&format!("blk.{layer}.ffn_down.weight"), &[96, 512]);
        }
        model.add("blk.0.ffn_up_exps.weight", &[512, 8, 3]);
        model
    }

    fn add(&mut self, name: &str, shape: &[u64]) {
        let values = values(shape.iter().product(), self.tensors.len() as u64);
        self.tensors.push((name.to_owned(), shape.to_vec(), values));
    }

    fn tensor(&mut self, name: &str) -> &mut Vec<f32> {
        &mut self.tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap().2
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self) -> Gguf {
        let path = self.path("model.gguf");
        let mut writer = Writer::new(self.metadata.clone());
        for (name, shape, _) in &self.tensors {
            writer.add(name.as_str(), shape, BlockType::F32).unwrap();
        }
        let mut file = writer.create(&path).unwrap();
        for (name, _, values) in &self.tensors {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            file.write(name, &bytes).unwrap();
        }
        file.finish().unwrap();
        Gguf::open(path).unwrap()
    }

    /// Quantizes to `name` and opens the result.
    fn quantized(&self, name: &str, options: &QuantizeOptions) -> Gguf {
        quantize(&self.write(), &self.path(name), options, &()).unwrap();
        Gguf::open(self.path(name)).unwrap()
    }
}

fn preset(name: &str) -> QuantizeOptions {
    QuantizeOptions::new(name.parse().unwrap())
}

fn unpacked(gguf: &Gguf, name: &str) -> Vec<f32> {
    let tensor = gguf.require(name).unwrap();
    tensor.block_type().unwrap().unpack_to_vec(&gguf.data(tensor).unwrap()).unwrap()
}

fn type_of(gguf: &Gguf, name: &str) -> BlockType {
    gguf.require(name).unwrap().block_type().unwrap()
}

/// An importance matrix as llama-imatrix writes it: name, sums, counts.
fn write_importance(path: &Path, entries: &[(&str, Vec<f32>, Vec<f32>)]) {
    let mut metadata = Metadata::new();
    metadata.insert("general.type", "imatrix");
    metadata.insert("imatrix.datasets", ["book.txt"].iter().collect::<Strings>());
    metadata.insert("imatrix.chunk_count", 5_u32);
    metadata.insert("imatrix.chunk_size", 512_u32);
    let mut writer = Writer::new(metadata);
    for (name, sums, counts) in entries {
        let rows = counts.len() as u64;
        writer.add(format!("{name}.in_sum2"), &[sums.len() as u64 / rows, rows], BlockType::F32).unwrap();
        writer.add(format!("{name}.counts"), &[1, rows], BlockType::F32).unwrap();
    }
    let mut file = writer.create(path).unwrap();
    for (name, sums, counts) in entries {
        for (suffix, values) in [("in_sum2", sums), ("counts", counts)] {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            file.write(&format!("{name}.{suffix}"), &bytes).unwrap();
        }
    }
    file.finish().unwrap();
}

#[test]
fn types_and_metadata_are_those_of_the_preset() {
    let model = Model::new();
    let quantized = model.quantized("q4_k_m.gguf", &preset("Q4_K_M"));
    let expected = [
        // Tied to the output.
        ("token_embd.weight", BlockType::Q6_K),
        ("output_norm.weight", BlockType::F32),
        ("blk.0.attn_q.weight", BlockType::Q4_K),
        // More bits for layers 2 and 3 of 4.
        ("blk.1.attn_v.weight", BlockType::Q4_K),
        ("blk.2.attn_v.weight", BlockType::Q6_K),
        ("blk.3.attn_v.weight", BlockType::Q6_K),
        // Rows of 96 are blocks of 32, not of 256.
        ("blk.1.ffn_down.weight", BlockType::Q5_0),
        ("blk.2.ffn_down.weight", BlockType::Q8_0),
        ("blk.0.ffn_up_exps.weight", BlockType::Q4_K),
    ];
    for (name, block_type) in expected {
        assert_eq!(type_of(&quantized, name), block_type, "{name}");
    }
    let metadata = quantized.metadata();
    assert_eq!(metadata.require_u32("general.file_type").unwrap(), 15);
    assert_eq!(metadata.require_u32("general.quantization_version").unwrap(), 2);
    assert_eq!(metadata.require_u32("llama.block_count").unwrap(), 4);
    assert_eq!(metadata.require_str_array("tokenizer.ggml.tokens").unwrap().len(), 2);
}

#[test]
fn values_come_near_and_norms_stay() {
    let model = Model::new();
    for (name, most) in [("Q8_0", 0.01), ("Q6_K", 0.02), ("Q4_K_M", 0.09), ("Q2_K", 0.35), ("F16", 0.001)] {
        let quantized = model.quantized(&format!("{name}.gguf"), &preset(name));
        for (tensor, _, before) in &model.tensors {
            let after = unpacked(&quantized, tensor);
            let square = |f: &dyn Fn(usize) -> f32| -> f64 {
                (0..before.len()).map(|i| f64::from(f(i)).powi(2)).sum()
            };
            let error = square(&|i| before[i] - after[i]) / square(&|i| before[i]);
            let bound = if tensor.contains("norm") { 0.0 } else { most };
            assert!(error.sqrt() <= bound, "{name} {tensor}: {}", error.sqrt());
        }
    }
}

#[derive(Default)]
struct Count {
    total: AtomicU64,
    done: AtomicU64,
}

impl Progress for Count {
    fn start(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    fn advance(&self, values: u64) {
        self.done.fetch_add(values, Ordering::Relaxed);
    }

    fn finish(&self) {}
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let mut model = Model::new();
    model.add("blk.3.ffn_up.weight", &[512, 3000]);
    let mut files = Vec::new();
    for threads in [1, 5] {
        let mut options = preset("Q3_K_M");
        options.threads = NonZeroUsize::new(threads).unwrap();
        let path = model.path(&format!("{threads}.gguf"));
        let progress = Count::default();
        quantize(&model.write(), &path, &options, &progress).unwrap();
        let values: usize = model.tensors.iter().map(|tensor| tensor.2.len()).sum();
        let [total, done] = [&progress.total, &progress.done].map(|count| count.load(Ordering::Relaxed));
        assert_eq!((total, done), (values as u64, values as u64));
        files.push(std::fs::read(path).unwrap());
    }
    assert!(files[0] == files[1]);
}

#[test]
fn what_a_person_asks_for_goes_first() {
    let model = Model::new();
    let mut options = preset("Q4_K_M");
    options.tensor_types = vec!["attn_q=q5_k".parse::<TensorType>().unwrap()];
    options.mix.token_embedding = Some(BlockType::Q8_0);
    options.metadata = vec![("general.name".to_owned(), Value::from("mine"))];
    let quantized = model.quantized("asked.gguf", &options);
    assert_eq!(type_of(&quantized, "blk.2.attn_q.weight"), BlockType::Q5_K);
    assert_eq!(type_of(&quantized, "token_embd.weight"), BlockType::Q8_0);
    assert_eq!(quantized.metadata().require_str("general.name").unwrap(), "mine");
    options.mix.pure = true;
    options.mix.token_embedding = None;
    options.overwrite = true;
    let pure = model.quantized("asked.gguf", &options);
    assert_eq!(type_of(&pure, "token_embd.weight"), BlockType::Q4_K);
    assert_eq!(type_of(&pure, "blk.3.attn_v.weight"), BlockType::Q4_K);
}

#[test]
fn importance_moves_errors_where_they_cost_little() {
    let model = Model::new();
    let heavy = |i: usize| if i.is_multiple_of(8) { 400.0 } else { 1.0 };
    let sums: Vec<f32> = (0..512).map(heavy).collect();
    let stack: Vec<f32> = (0..3 * 512).map(|i| if i < 512 { heavy(i) } else { heavy(i + 3) }).collect();
    let path = model.path("imatrix.gguf");
    write_importance(
        &path,
        &[
            ("blk.1.attn_q.weight", sums, vec![4.0]),
            // No token went to the last expert.
            ("blk.0.ffn_up_exps.weight", stack, vec![2.0, 2.0, 0.0]),
        ],
    );
    let mut options = preset("Q3_K_S");
    let plain = model.quantized("plain.gguf", &options);
    options.importance = Some(ImportanceMatrix::open(&path).unwrap());
    let weighed = model.quantized("weighed.gguf", &options);
    let error = |gguf: &Gguf, name: &str, columns: &dyn Fn(usize) -> bool| -> f64 {
        let before = &model.tensors.iter().find(|tensor| tensor.0 == name).unwrap().2;
        let after = unpacked(gguf, name);
        let of = (0..before.len()).filter(|i| columns(*i));
        of.map(|i| f64::from(before[i] - after[i]).powi(2)).sum()
    };
    let ratio = |name: &str, columns: &dyn Fn(usize) -> bool| {
        error(&weighed, name, columns) / error(&plain, name, columns)
    };
    assert!(ratio("blk.1.attn_q.weight", &|i| i % 8 == 0) < 0.6);
    // The second expert has its own columns.
    let in_expert = |i: usize, expert: usize| i / (512 * 8) == expert;
    assert!(ratio("blk.0.ffn_up_exps.weight", &|i| in_expert(i, 0) && i % 8 == 0) < 0.6);
    assert!(ratio("blk.0.ffn_up_exps.weight", &|i| in_expert(i, 1) && i % 8 == 5) < 0.6);
    assert!(ratio("blk.0.ffn_up_exps.weight", &|i| in_expert(i, 2) && i % 8 == 0) > 0.7);
    let metadata = weighed.metadata();
    assert_eq!(metadata.require_u32("quantize.imatrix.entries_count").unwrap(), 2);
    assert_eq!(metadata.require_u32("quantize.imatrix.chunks_count").unwrap(), 5);
    assert_eq!(metadata.require_str("quantize.imatrix.dataset").unwrap(), "book.txt");
    assert!(metadata.require_str("quantize.imatrix.file").unwrap().ends_with("imatrix.gguf"));
}

#[test]
fn the_older_form_of_importance_is_read() {
    let model = Model::new();
    let mut bytes = 1_i32.to_le_bytes().to_vec();
    let name = "blk.1.attn_q.weight";
    bytes.extend((name.len() as i32).to_le_bytes());
    bytes.extend(name.as_bytes());
    bytes.extend(4_i32.to_le_bytes());
    bytes.extend(512_i32.to_le_bytes());
    bytes.extend((0..512).flat_map(|i| (i as f32).to_le_bytes()));
    let whole = bytes.clone();
    bytes.extend(7_i32.to_le_bytes());
    bytes.extend(8_i32.to_le_bytes());
    bytes.extend(b"book.txt");
    let path = model.path("imatrix.dat");
    std::fs::write(&path, &bytes).unwrap();
    let matrix = ImportanceMatrix::open(&path).unwrap();
    assert_eq!(matrix.of(name, 512, 0).unwrap()[10], 2.5);
    assert_eq!((matrix.chunks(), matrix.datasets()), (7, &["book.txt".to_owned()][..]));
    // The end is optional; anything before it is not.
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(ImportanceMatrix::open(&path).unwrap().len(), 1);
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = ImportanceMatrix::open(&path).unwrap_err().to_string();
        assert!(error.contains("imatrix.dat"), "{error}");
    }
}

/// Quantizes to `out.gguf`, which must fail with an error that has all of `parts` in it and leave no file.
fn refused(model: &Model, options: &QuantizeOptions, parts: &[&str]) {
    let error = quantize(&model.write(), &model.path("out.gguf"), options, &()).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
    let left = std::fs::read_dir(model.folder.path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.contains("out.gguf")), "{left:?}");
}

/// Only proportions count, so that no size of the numbers may lead out of the range of f32.
#[test]
fn the_size_of_importance_does_not_matter() {
    let model = Model::new();
    let path = model.path("imatrix.gguf");
    let shape: Vec<f32> = (0..512).map(|column| 1.0 + (column % 7) as f32).collect();
    let mut packed = Vec::new();
    for size in [1.0, 2.0_f32.powi(120), 2.0_f32.powi(-120)] {
        let sums = shape.iter().map(|value| value * size).collect();
        write_importance(&path, &[("blk.1.attn_q.weight", sums, vec![1.0])]);
        let mut options = preset("Q4_K_M");
        options.importance = Some(ImportanceMatrix::open(&path).unwrap());
        let gguf = model.quantized(&format!("{}.gguf", packed.len()), &options);
        packed.push(unpacked(&gguf, "blk.1.attn_q.weight"));
    }
    let distance = |values: &[f32]| -> f32 {
        let differences = values.iter().zip(&packed[0]).map(|(value, other)| (value - other).powi(2));
        let squares: f32 = packed[0].iter().map(|value| value.powi(2)).sum();
        (differences.sum::<f32>() / squares).sqrt()
    };
    for values in &packed[1..] {
        assert!(distance(values) < 0.02, "{}", distance(values));
    }
}

#[test]
fn a_block_count_without_end_takes_no_memory() {
    let mut model = Model::new();
    model.metadata.insert("llama.block_count", u32::MAX);
    // The number is the mix's business alone; it must not become a list of so many entries.
    Plan::new(&model.write(), &preset("Q4_K_M")).unwrap();
}

#[test]
fn importance_of_another_model_is_refused() {
    let model = Model::new();
    let mut options = preset("Q4_K_M");
    let path = model.path("imatrix.gguf");
    write_importance(&path, &[("blk.1.attn_q.weight", vec![1.0; 256], vec![1.0])]);
    options.importance = Some(ImportanceMatrix::open(&path).unwrap());
    refused(&model, &options, &["imatrix.gguf", "blk.1.attn_q.weight", "256", "512", "another model"]);
    write_importance(&path, &[("blk.9.attn_q.weight", vec![1.0; 256], vec![1.0])]);
    options.importance = Some(ImportanceMatrix::open(&path).unwrap());
    refused(&model, &options, &["imatrix.gguf", "none of its 1 entries", "another model"]);
    write_importance(&path, &[("blk.1.attn_q.weight", vec![f32::NAN; 512], vec![1.0])]);
    assert!(ImportanceMatrix::open(&path).unwrap_err().to_string().contains("NaN"));
    for count in [f32::NAN, -1.0] {
        write_importance(&path, &[("blk.1.attn_q.weight", vec![1.0; 512], vec![count])]);
        let error = ImportanceMatrix::open(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("count of {count}")), "{error}");
    }
    // The model itself is no importance matrix.
    assert!(
        ImportanceMatrix::open(model.path("model.gguf")).unwrap_err().to_string().contains("no importance")
    );
}

#[test]
fn types_that_need_importance_say_so() {
    let model = Model::new();
    for (name, block_type) in [
        ("IQ2_XXS", "IQ2_XXS"),
        ("IQ2_XS", "IQ2_XS"),
        ("IQ1_S", "IQ1_S"),
        ("IQ3_XXS", "IQ3_XXS"),
        ("Q2_K_S", "Q2_K"),
    ] {
        refused(&model, &preset(name), &[block_type, "importance matrix", "--imatrix", "blk."]);
    }
}

#[test]
fn values_that_are_not_finite_are_refused() {
    for (name, value, shown) in [
        ("blk.2.attn_q.weight", f32::NAN, "NaN"),
        ("blk.2.attn_q.weight", f32::INFINITY, "inf"),
        ("output_norm.weight", f32::NEG_INFINITY, "-inf"),
    ] {
        let mut model = Model::new();
        model.tensor(name)[77] = value;
        refused(&model, &preset("Q4_K_M"), &[name, shown, "value 77", "model.gguf"]);
    }
    let mut model = Model::new();
    model.tensor("blk.2.attn_q.weight")[600] = 1e30;
    refused(&model, &preset("Q8_0"), &["blk.2.attn_q.weight", "1000000", "Q8_0", "F32"]);
}

#[test]
fn packed_files_and_existing_targets_are_left_alone() {
    let model = Model::new();
    let packed = model.quantized("packed.gguf", &preset("Q8_0"));
    let target = model.path("again.gguf");
    let mut options = preset("Q4_K_M");
    let error = quantize(&packed, &target, &options, &()).unwrap_err().to_string();
    assert!(error.contains("is Q8_0 already") && error.contains("--allow-requantize"), "{error}");
    options.allow_requantize = true;
    quantize(&packed, &target, &options, &()).unwrap();
    let before = std::fs::read(&target).unwrap();
    assert!(matches!(quantize(&packed, &target, &options, &()), Err(Error::Exists { .. })));
    assert!(before == std::fs::read(&target).unwrap());
    // Over itself, when asked.
    options.overwrite = true;
    quantize(&packed, &model.path("packed.gguf"), &options, &()).unwrap();
    assert!(before == std::fs::read(model.path("packed.gguf")).unwrap());
}
