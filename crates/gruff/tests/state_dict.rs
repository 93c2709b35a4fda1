//! Dense weights by transformers' names.

use gruff::{AutoTokenizer, Error, GgufConfig};

#[path = "../examples/tiny_random/model.rs"]
mod tiny;

#[test]
fn weights_come_by_the_names_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    tiny::write(&path).unwrap();
    let checkpoint = AutoTokenizer::from_pretrained(path.to_str().unwrap()).checkpoint().unwrap();
    let weights = checkpoint.state_dict(GgufConfig { dequantize: true }).unwrap();
    assert_eq!(weights.config()["architectures"][0], "Qwen3_5ForCausalLM");
    for name in weights.names() {
        let shape = weights.shape(name).unwrap();
        let values = weights.values(name).unwrap();
        assert_eq!(values.len() as u64, shape.iter().product::<u64>(), "{name}");
        assert!(values.iter().all(|value| value.is_finite()), "{name}");
    }
    // GGUF holds 1 + w.
    let norm = checkpoint.gguf().require("output_norm.weight").unwrap();
    let stored = norm.block_type().unwrap().unpack_to_vec(&checkpoint.gguf().data(norm).unwrap()).unwrap();
    let own = weights.values("model.norm.weight").unwrap();
    assert!(stored.iter().zip(&own).all(|(stored, own)| stored - 1.0 == *own));
    assert!(weights.values("model.layers.0.mlp.side_proj.weight").is_err());
    let refused = checkpoint.state_dict(GgufConfig::default());
    assert!(matches!(refused, Err(Error::Option(_))));
}
