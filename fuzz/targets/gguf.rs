//! Any bytes are either refused, or are a model that reads the same once it is written again.
//!
//! `cargo +nightly fuzz run gguf` in the repository's root; `-- -max_total_time=600` to stop after ten minutes.

#![no_main]

use gruff_gguf::{Error, Gguf, TensorData, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(model) = Gguf::from_bytes(bytes) else { return };
    let data: Vec<Option<TensorData>> = model.tensors().map(|tensor| model.data(tensor).ok()).collect();
    let copy = write(&model, &data);
    let copy = Gguf::from_bytes(copy).expect("what was written is read");
    // As text, so that NaN equals NaN. The writer sets `split.*` itself.
    let before = model.metadata().iter().filter(|(key, _)| !key.starts_with("split."));
    let after = copy.metadata().iter().filter(|(key, _)| !key.starts_with("split."));
    assert!(before.map(|pair| format!("{pair:?}")).eq(after.map(|pair| format!("{pair:?}"))));
    for (tensor, data) in model.tensors().zip(data) {
        let Some(data) = data else { continue };
        let copied = copy.require(tensor.name()).expect("every readable tensor is copied");
        assert_eq!((tensor.shape(), tensor.type_id()), (copied.shape(), copied.type_id()));
        assert_eq!(*data, *copy.data(copied).expect("as readable as before"));
    }
});

/// The model's pairs and the tensors that have data, as the bytes of a new file.
fn write(model: &Gguf, data: &[Option<TensorData>]) -> Vec<u8> {
    let mut writer = Writer::new(model.metadata().clone());
    let readable = || model.tensors().zip(data).filter_map(|(tensor, data)| Some((tensor, data.as_ref()?)));
    for (tensor, _) in readable() {
        let block_type = tensor.block_type().expect("data were readable");
        writer.add(tensor.name(), tensor.shape(), block_type).expect("the shape was accepted");
    }
    let mut pieces = readable().map(|(_, data)| data.to_vec());
    writer.to_bytes(|_| Ok::<_, Error>(pieces.next().unwrap_or_default())).expect("a sound model can be written")
}
