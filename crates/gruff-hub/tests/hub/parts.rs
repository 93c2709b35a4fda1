//! Parts of files, of which the rest stays on the Hub.

use gruff_hub::{ModelId, RepoId};

use super::server::Fault;
use super::{Bench, bytes};

fn repo() -> RepoId {
    let Ok(ModelId::Hub { repo, .. }) = ModelId::parse("org/model") else { panic!("no repository") };
    repo
}

#[test]
fn a_range_is_all_that_travels() {
    let bench = Bench::new();
    let model = bytes(1, 300_000);
    let commit = bench.hub.commit(&[("m.gguf", &model)]);
    let hub = bench.client();
    let file = hub.remote_file(&repo(), &commit, "m.gguf").unwrap();
    assert_eq!(file.size(), 300_000);
    bench.hub.take_log();
    assert_eq!(file.read(0, 1000).unwrap(), model[..1000]);
    assert_eq!(file.read(1000, 5000).unwrap(), model[1000..5000]);
    assert_eq!(file.read(299_990, 1 << 40).unwrap(), model[299_990..]);
    assert!(file.read(300_000, 400_000).unwrap().is_empty());
    let ranges: Vec<_> = bench.hub.take_log().iter().map(|request| (request.range, request.until)).collect();
    assert_eq!(ranges, [(Some(0), Some(999)), (Some(1000), Some(4999)), (Some(299_990), Some(299_999))]);
    assert!(bench.blobs().0.is_empty() && bench.blobs().1.is_empty(), "nothing goes to the cache");
}

#[test]
fn a_server_without_ranges_is_hung_up_on() {
    let bench = Bench::new();
    // More than fits into the buffers between two sockets, so that the server notices.
    let model = bytes(2, 64 << 20);
    let commit = bench.hub.commit(&[("m.gguf", &model)]);
    let hub = bench.client();
    let file = hub.remote_file(&repo(), &commit, "m.gguf").unwrap();
    bench.hub.fault("GET", Fault::IgnoreRange);
    assert_eq!(file.read(0, 4096).unwrap(), model[..4096]);
    bench.hub.fault("GET", Fault::IgnoreRange);
    assert_eq!(file.read(4096, 8192).unwrap(), model[4096..8192]);
}

#[test]
fn what_breaks_is_tried_again_and_wrong_bytes_are_not_taken() {
    let bench = Bench::new();
    let model = bytes(3, 50_000);
    let commit = bench.hub.commit(&[("m.gguf", &model)]);
    let hub = bench.client();
    let file = hub.remote_file(&repo(), &commit, "m.gguf").unwrap();
    bench.hub.fault("GET", Fault::CutAfter(100));
    assert_eq!(file.read(10, 2000).unwrap(), model[10..2000]);
    for _ in 0..3 {
        bench.hub.fault("GET", Fault::WrongRange);
    }
    let error = file.read(100, 2000).unwrap_err().to_string();
    assert!(error.contains("other bytes"), "{error}");
    let missing = hub.remote_file(&repo(), &commit, "n.gguf").err().unwrap().to_string();
    assert!(missing.contains("n.gguf") && missing.contains("m.gguf"), "{missing}");
}
