//! inspect, list, download, doctor, logits, completions.

use crate::gruff::{Gruff, bytes};

#[test]
fn inspect_shows_what_a_file_holds() {
    let gruff = Gruff::new();
    let text = gruff.ok(&["inspect", "tiny.gguf", "--tensors", "--metadata"]);
    for part in
        ["architecture   qwen35\n", "tiny random", "Q8_0", "blk.0.ssm_a", "tokenizer.ggml.pre = \"qwen2\""]
    {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    let json = gruff.json(&["inspect", "tiny.gguf", "--json", "--tensors", "--metadata"]);
    assert_eq!(json["architecture"], "qwen35");
    assert_eq!(json["supported"], true);
    assert_eq!(json["tensor_count"].as_u64().unwrap() as usize, json["tensors"].as_array().unwrap().len());
    assert_eq!(json["metadata"]["qwen35.block_count"], 4);
    assert_eq!(json["metadata"]["tokenizer.ggml.tokens"].as_array().unwrap().len(), 265);
    let short = gruff.json(&["inspect", "tiny.gguf", "--json"]);
    assert!(short.get("tensors").is_none() && short.get("metadata").is_none());
}

#[test]
fn models_may_be_named_by_their_folder() {
    let gruff = Gruff::new();
    assert_eq!(
        gruff.ok(&["inspect", "."]).lines().count(),
        gruff.ok(&["inspect", "tiny.gguf"]).lines().count()
    );
    let printed = gruff.ok(&["download", "tiny.gguf"]);
    assert_eq!(printed.trim_end(), "tiny.gguf");
}

#[test]
fn fit_leaves_out_what_it_cannot_read() {
    let gruff = Gruff::new();
    gruff.damaged("cut.gguf", |bytes| bytes.truncate(300));
    std::fs::copy(gruff.path("tiny.gguf"), gruff.path("part-00001-of-00002.gguf")).unwrap();
    let outcome = gruff.run(&["fit", ".", "--json", "--memory", "1G"]);
    for part in ["left out: ./cut.gguf", "left out: part-0000"] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    let json: serde_json::Value = serde_json::from_str(&outcome.ok()).unwrap();
    assert_eq!(json["variants"].as_array().unwrap().len(), 1);
    assert_eq!(json["variants"][0]["file"], "./tiny.gguf");
    gruff.run(&["fit", "cut.gguf"]).fails(1, &["cut.gguf"]);
}

#[test]
fn an_edit_that_was_interrupted_is_told_and_finished() {
    let gruff = Gruff::new();
    let edit = ["edit", "tiny.gguf", "--set", "general.name=other"];
    gruff.damaged("marked.gguf", |bytes| bytes[..4].copy_from_slice(b"EDIT"));
    gruff.run(&["inspect", "marked.gguf"]).fails(1, &["marked.gguf", "interrupted", "`gruff edit FILE`"]);
    gruff.run(&["edit", "marked.gguf"]).fails(1, &["marked.gguf", "marked.gguf.journal"]);
    gruff.run(&["edit", "tiny.gguf"]).fails(2, &["nothing to change"]);
    gruff.ok(&edit);
    assert!(!gruff.path("tiny.gguf.journal").exists());
    gruff.ok(&["inspect", "tiny.gguf"]);
    gruff.ok(&["split", "tiny.gguf", "parts/tiny.gguf", "--max-tensors", "20"]);
    gruff.run(&["split", "tiny.gguf", "a/b/tiny.gguf"]).fails(1, &["a/b cannot be created"]);
    let folders_are = gruff.run(&["split", "tiny.gguf", "."]);
    folders_are.fails(1, &[". names no file", "model.gguf"]);
}

#[cfg(unix)]
#[test]
fn an_edit_follows_links() {
    let gruff = Gruff::new();
    std::os::unix::fs::symlink("tiny.gguf", gruff.path("link.gguf")).unwrap();
    // Both ways: where there is room, and where the file is written anew.
    for name in ["x".to_owned(), "long ".repeat(2000)] {
        gruff.ok(&["edit", "link.gguf", "--set", &format!("general.name={name}")]);
        assert!(gruff.path("link.gguf").is_symlink());
        let json = gruff.json(&["inspect", "tiny.gguf", "--json", "--metadata"]);
        assert_eq!(json["metadata"]["general.name"], name);
    }
}

#[test]
fn list_shows_the_cache() {
    let gruff = Gruff::new();
    assert_eq!(gruff.json(&["list", "--json"]), serde_json::json!([]));
    let commit = "0123456789012345678901234567890123456789";
    let snapshot = gruff.path(&format!("hf/hub/models--someone--tiny-GGUF/snapshots/{commit}"));
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::copy(gruff.path("tiny.gguf"), snapshot.join("tiny-Q8_0.gguf")).unwrap();
    let refs = gruff.path("hf/hub/models--someone--tiny-GGUF/refs");
    std::fs::create_dir_all(&refs).unwrap();
    std::fs::write(refs.join("main"), commit).unwrap();
    assert!(gruff.ok(&["list"]).trim_end().ends_with("someone/tiny-GGUF:tiny-Q8_0.gguf"));
    assert_eq!(gruff.json(&["list", "--json"])[0]["commit"], commit);
    let ids = gruff.ok(&["tokenize", "someone/tiny-GGUF:Q8_0", "hello", "--ids"]);
    assert_eq!(ids, gruff.ok(&["tokenize", "tiny.gguf", "hello", "--ids"]));
}

#[test]
fn doctor_tells_of_machine_and_model() {
    let gruff = Gruff::new();
    let text = gruff.ok(&["doctor", "tiny.gguf", "--threads", "1", "--ctx", "128"]);
    for part in [
        "physical",
        "hardware threads",
        "unless --threads",
        "features",
        "kernels",
        "Q4_K",
        "fast kernel",
        "weights",
        "KV",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(!gruff.ok(&["doctor"]).contains("weights"));
}

#[test]
fn logits_have_the_shape_of_ids_and_vocabulary() {
    let gruff = Gruff::new();
    gruff.ok(&["logits", "tiny.gguf", "--ids", "1,2,3", "--out", "last.npy", "--dtype", "f32"]);
    gruff.write("ids.txt", "1 2 3\n");
    gruff.ok(&["logits", "tiny.gguf", "--ids", "ids.txt", "--all", "--out", "all.npy", "--dtype", "f32"]);
    gruff.ok(&["logits", "tiny.gguf", "--ids", "1,2,3", "--all", "--out", "all.json", "--dtype", "f32"]);
    let (last, all) = (npy(&gruff, "last.npy", "(265,)"), npy(&gruff, "all.npy", "(3, 265,)"));
    assert_eq!((last.len(), all.len()), (265, 3 * 265));
    assert_eq!(last, all[2 * 265..]);
    assert!(last.iter().all(|value| value.is_finite()));
    let json: serde_json::Value = serde_json::from_slice(&bytes(&gruff.path("all.json"))).unwrap();
    assert_eq!(json["shape"], serde_json::json!([3, 265]));
    let rows = json["logits"].as_array().unwrap();
    for (row, expected) in rows.iter().zip(all.chunks(265)) {
        let row: Vec<f32> =
            row.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect();
        assert_eq!(row, expected);
    }
}

/// The values of a .npy file of f32 whose header has `shape`.
fn npy(gruff: &Gruff, name: &str, shape: &str) -> Vec<f32> {
    let bytes = bytes(&gruff.path(name));
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let begin = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..begin]).unwrap();
    assert!(header.contains("'<f4'") && header.contains(shape), "{header}");
    bytes[begin..].chunks_exact(4).map(|v| f32::from_le_bytes([v[0], v[1], v[2], v[3]])).collect()
}

#[test]
fn completions_and_help_are_there() {
    let gruff = Gruff::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(gruff.ok(&["completions", shell]).contains("detokenize"), "{shell}");
    }
    assert!(gruff.ok(&["--version"]).starts_with("gruff "));
    let help = gruff.ok(&["--help"]);
    for command in [
        "run",
        "inspect",
        "tokenize",
        "render",
        "bench",
        "logits",
        "doctor",
        "download",
        "list",
        "convert",
        "dequantize",
        "split",
        "merge",
        "edit",
        "perplexity",
        "imatrix",
        "compare",
        "quantize",
    ] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}");
        assert!(gruff.ok(&[command, "--help"]).contains("Usage:"), "{command}");
    }
}
