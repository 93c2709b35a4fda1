//! Small folders of every architecture, converted and turned back.

mod faults;
mod folder;

use gruff_gguf::Gguf;

use crate::{ConvertOptions, Dense, DequantizeOptions, Dtype, OutType, convert, dequantize};
use folder::{Folder, MODELS};

#[test]
fn every_architecture_leads_to_gguf_and_back() {
    for model in MODELS {
        let folder = Folder::new(model);
        let gguf = Gguf::open(folder.convert(OutType::F32)).unwrap();
        let architecture = gguf.metadata().str("general.architecture").unwrap();
        assert_eq!(architecture, Some(model.architecture), "{}", model.class);
        let dense = Dense::new(&gguf).unwrap();
        assert_eq!(dense.config()["architectures"][0], model.class);
        let mut names: Vec<&str> = dense.names().collect();
        names.sort_unstable();
        assert_eq!(names, folder.names(), "{}", model.class);
        for name in names {
            let (shape, expected) = folder.tensor(name);
            assert_eq!(dense.shape(name), Some(shape.as_slice()), "{name}");
            let values = dense.values(name).unwrap();
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-6 * (1.0 + a.abs());
            assert!(values.iter().zip(&expected).all(near), "{}: {name}", model.class);
        }
    }
}

#[test]
fn folders_that_were_made_can_be_converted_again() {
    for model in MODELS {
        let folder = Folder::new(model);
        let first = folder.convert(OutType::F32);
        let gguf = Gguf::open(&first).unwrap();
        for shard_bytes in [u64::MAX, 4000] {
            let back = folder.path().join(format!("back-{shard_bytes}"));
            let options = DequantizeOptions { dtype: Dtype::F32, shard_bytes };
            dequantize(&gguf, &back, &options, &()).unwrap();
            let again = folder.path().join(format!("again-{shard_bytes}.gguf"));
            let options = ConvertOptions { outtype: OutType::F32, ..ConvertOptions::default() };
            convert(&back, &again, &options, &()).unwrap();
            let again = Gguf::open(again).unwrap();
            // Folders have other names, which tell other things.
            let told = |key: &str| key.starts_with("general.") && !key.starts_with("general.sampling.");
            let keys = |gguf: &Gguf| -> Vec<String> {
                gguf.metadata().keys().filter(|key| !told(key)).map(str::to_owned).collect()
            };
            assert_eq!(keys(&again), keys(&gguf), "{}", model.class);
            for key in keys(&gguf) {
                let (one, two) = (gguf.metadata().get(&key), again.metadata().get(&key));
                assert_eq!(two, one, "{}: {key}", model.class);
            }
            for tensor in gguf.tensors() {
                let other = again.require(tensor.name()).unwrap();
                assert_eq!((other.shape(), other.type_id()), (tensor.shape(), tensor.type_id()));
            }
        }
    }
}

#[test]
fn types_are_those_of_the_format() {
    let folder = Folder::new(&MODELS[0]);
    for (outtype, matrix, file_type) in [
        (OutType::F32, "F32", 0),
        (OutType::F16, "F16", 1),
        (OutType::BF16, "BF16", 32),
        (OutType::Q8_0, "Q8_0", 7),
    ] {
        let gguf = Gguf::open(folder.convert(outtype)).unwrap();
        let name = |tensor: &str| gguf.require(tensor).unwrap().block_type().unwrap().name();
        assert_eq!(name("blk.0.ffn_gate.weight"), matrix);
        assert_eq!(name("blk.0.attn_norm.weight"), "F32");
        assert_eq!(name("blk.0.ssm_conv1d.weight"), "F32");
        // Rows of 24 are no whole blocks.
        let down = if outtype == OutType::Q8_0 { "F16" } else { matrix };
        assert_eq!(name("blk.0.ffn_down.weight"), down);
        assert_eq!(gguf.metadata().u32("general.file_type").unwrap(), Some(file_type));
    }
}

#[test]
fn value_heads_are_tiled() {
    let folder = Folder::new(&MODELS[0]);
    let gguf = Gguf::open(folder.convert(OutType::F32)).unwrap();
    let values = |name: &str| {
        let tensor = gguf.require(name).unwrap();
        tensor.block_type().unwrap().unpack_to_vec(&gguf.data(tensor).unwrap()).unwrap()
    };
    // Two key heads of 4, with two value heads of 4 each: heads 0 1 2 3 become 0 2 1 3.
    let (_, grouped) = folder.tensor("model.layers.0.linear_attn.in_proj_z.weight");
    let head = |heads: &[f32], at: usize| heads[at * 4 * 32..(at + 1) * 4 * 32].to_vec();
    let tiled = values("blk.0.attn_gate.weight");
    for (position, source) in [0, 2, 1, 3].into_iter().enumerate() {
        assert_eq!(head(&tiled, position), head(&grouped, source));
    }
    let (_, a_log) = folder.tensor("model.layers.0.linear_attn.A_log");
    let expected: Vec<f32> = [0, 2, 1, 3].map(|head: usize| -a_log[head].exp()).to_vec();
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
    assert!(values("blk.0.ssm_a").iter().zip(&expected).all(near));
    // Queries and keys, 16 rows, stay.
    let (_, qkv) = folder.tensor("model.layers.0.linear_attn.in_proj_qkv.weight");
    let own = values("blk.0.attn_qkv.weight");
    assert_eq!(own[..16 * 32], qkv[..16 * 32]);
    assert_eq!(own[20 * 32..24 * 32], qkv[24 * 32..28 * 32]);
    // Columns of the output.
    let (_, out) = folder.tensor("model.layers.0.linear_attn.out_proj.weight");
    let own = values("blk.0.ssm_out.weight");
    assert_eq!((own[4], own[8], own[16 + 4]), (out[8], out[4], out[16 + 8]));
    let (_, norm) = folder.tensor("model.norm.weight");
    assert_eq!(values("output_norm.weight")[3], norm[3] + 1.0);
}

#[test]
fn multimodal_folders_and_fused_experts_are_the_same_model() {
    let model = MODELS.iter().find(|model| model.class == "Qwen3_5MoeForCausalLM").unwrap();
    let plain = Folder::new(model);
    let wrapped = plain.wrapped("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe");
    let (one, two) = (plain.convert(OutType::F32), wrapped.convert(OutType::F32));
    let (one, two) = (Gguf::open(one).unwrap(), Gguf::open(two).unwrap());
    assert_eq!(one.tensors().len(), two.tensors().len());
    for tensor in one.tensors() {
        let other = two.require(tensor.name()).unwrap();
        assert_eq!(other.shape(), tensor.shape());
        assert!(*one.data(tensor).unwrap() == *two.data(other).unwrap(), "{}", tensor.name());
    }
}

#[test]
fn metadata_that_cannot_be_are_refused_on_the_way_back() {
    let folder = Folder::new(MODELS.iter().find(|model| model.class == "LlamaForCausalLM").unwrap());
    let path = folder.convert(OutType::F32);
    let metadata = Gguf::open(&path).unwrap().metadata().clone();
    let refused = |key: &str, value: gruff_gguf::Value, parts: &[&str]| {
        let mut metadata = metadata.clone();
        metadata.insert(key, value);
        gruff_gguf::replace_metadata(&path, None, &metadata).unwrap();
        let error = Dense::new(&Gguf::open(&path).unwrap()).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    for blocks in [1_u64, u64::from(u32::MAX), u64::MAX] {
        refused("llama.block_count", blocks.into(), &["block_count", &blocks.to_string(), "make 2 blocks"]);
    }
    refused("llama.attention.layer_norm_rms_epsilon", f32::NAN.into(), &["rms_epsilon", "NaN", "finite"]);
}

#[test]
fn blocks_for_multi_token_prediction_are_kept_unless_told_otherwise() {
    let mut folder = Folder::new(&MODELS[0]);
    let block: Vec<_> = folder
        .tensors_mut()
        .iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix("model.layers.1.")?.to_owned(), tensor.clone())))
        .collect();
    for (name, tensor) in block {
        folder.tensors_mut().insert(format!("mtp.layers.0.{name}"), tensor);
    }
    folder.tensors_mut().insert("mtp.fc.weight".to_owned(), (vec![32, 64], vec![0.25; 32 * 64]));
    for name in ["norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"] {
        folder.tensors_mut().insert(format!("mtp.{name}.weight"), (vec![32], vec![0.5; 32]));
    }
    folder.write_tensors();
    let gguf = Gguf::open(folder.convert(OutType::F32)).unwrap();
    assert_eq!(gguf.metadata().u32("qwen35.block_count").unwrap(), Some(3));
    assert_eq!(gguf.metadata().u32("qwen35.nextn_predict_layers").unwrap(), Some(1));
    assert_eq!(gguf.require("blk.2.nextn.eh_proj.weight").unwrap().shape(), [64, 32]);
    assert!(gguf.tensor("blk.2.attn_q.weight").is_some() && gguf.tensor("blk.2.ffn_up.weight").is_some());
    let norm = gguf.require("blk.2.nextn.shared_head_norm.weight").unwrap();
    assert_eq!(gguf.data(norm).unwrap()[..4], 1.5_f32.to_le_bytes());
    // transformers has no place for them.
    assert!(
        Dense::new(&gguf).unwrap().names().all(|name| !name.contains("mtp") && !name.contains("layers.2"))
    );

    let options = ConvertOptions { outtype: OutType::F32, no_mtp: true, ..ConvertOptions::default() };
    let without = folder.path().join("without.gguf");
    convert(folder.path(), &without, &options, &()).unwrap();
    let without = Gguf::open(without).unwrap();
    assert_eq!(without.metadata().u32("qwen35.block_count").unwrap(), Some(2));
    assert!(without.tensors().all(|tensor| !tensor.name().contains("nextn")));
}
