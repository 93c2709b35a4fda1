//! convert, dequantize, split, merge, edit.

use crate::gruff::{Gruff, bytes};

fn logits(gruff: &Gruff, model: &str) -> Vec<u8> {
    gruff.ok(&["logits", model, "--ids", "1,2,3,4", "--dtype", "f32", "--out", "logits.npy"]);
    bytes(&gruff.path("logits.npy"))
}

#[test]
fn a_model_goes_to_transformers_and_back() {
    let gruff = Gruff::new();
    gruff.ok(&["dequantize", "tiny.gguf", "folder", "--dtype", "f32", "--max-shard-size", "64k"]);
    for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        let text = bytes(&gruff.path(&format!("folder/{name}")));
        serde_json::from_slice::<serde_json::Value>(&text).unwrap();
    }
    assert!(gruff.path("folder/model.safetensors.index.json").exists());
    assert!(gruff.path("folder/chat_template.jinja").exists());
    gruff.ok(&["convert", "folder", "back.gguf", "--outtype", "f32", "--name", "tiny random"]);
    assert_eq!(
        gruff.ok(&["tokenize", "back.gguf", "hello world", "--ids"]),
        gruff.ok(&["tokenize", "tiny.gguf", "hello world", "--ids"])
    );
    // The weights are the same, so the exact path gives nearly the same logits: zero-centred norms round once more.
    let values = |file: Vec<u8>| -> Vec<f32> {
        let begin = file.len() - 4 * 265;
        file[begin..].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let (one, two) = (values(logits(&gruff, "tiny.gguf")), values(logits(&gruff, "back.gguf")));
    let error: f64 = one.iter().zip(&two).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let power: f64 = one.iter().map(|a| f64::from(*a).powi(2)).sum();
    assert!(error / power < 1e-9, "{}", error / power);
}

#[test]
fn folders_and_targets_that_will_not_do() {
    let gruff = Gruff::new();
    gruff.run(&["convert", "absent", "out.gguf"]).fails(1, &["absent", "folder"]);
    gruff.run(&["convert", ".", "out.gguf"]).fails(1, &["config.json"]);
    gruff.run(&["convert", ".", "tiny.gguf"]).fails(1, &["tiny.gguf", "exists"]);
    gruff.run(&["convert", ".", "out.gguf", "--outtype", "q4_k"]).fails(2, &["q4_k"]);
    gruff.run(&["dequantize", "tiny.gguf", "."]).fails(1, &["exists"]);
    gruff.run(&["dequantize", "absent.gguf", "folder"]).fails(1, &["absent.gguf"]);
    assert!(!gruff.path("out.gguf").exists() && !gruff.path("folder").exists());
}

#[test]
fn parts_are_the_same_model() {
    let gruff = Gruff::new();
    let paths = gruff.ok(&["split", "tiny.gguf", "part.gguf", "--max-tensors", "20"]);
    let first = paths.lines().next().unwrap();
    assert!(first.starts_with("part-00001-of-0000"), "{paths}");
    assert!(paths.lines().count() > 2);
    assert_eq!(logits(&gruff, first), logits(&gruff, "tiny.gguf"));
    gruff
        .run(&["split", "tiny.gguf", "part.gguf", "--max-tensors", "20"])
        .fails(1, &["part-00001", "exists"]);
    gruff.ok(&["split", "tiny.gguf", "part.gguf", "--max-tensors", "20", "--overwrite"]);
    assert_eq!(gruff.ok(&["merge", paths.lines().nth(1).unwrap(), "whole.gguf"]), "whole.gguf\n");
    assert_eq!(bytes(&gruff.path("whole.gguf")), bytes(&gruff.path("tiny.gguf")));
    gruff.run(&["merge", "whole.gguf", "again.gguf"]).fails(1, &["whole.gguf", "nothing to merge"]);
    gruff.run(&["merge", first, "whole.gguf"]).fails(1, &["whole.gguf", "exists"]);
    assert_eq!(gruff.ok(&["split", "tiny.gguf", "one.gguf", "--max-size", "1G"]), "one.gguf\n");
}

#[test]
fn metadata_are_edited_in_place_or_beside() {
    let gruff = Gruff::new();
    let before = logits(&gruff, "tiny.gguf");
    let metadata =
        |key: &str| gruff.json(&["inspect", "tiny.gguf", "--metadata", "--json"])["metadata"][key].clone();
    gruff.ok(&["edit", "tiny.gguf", "--set", "general.name=Tiny"]);
    assert_eq!(metadata("general.name"), "Tiny");
    gruff.write("new.jinja", "{{ messages[0].content }}".repeat(1000));
    let said = gruff.run(&["edit", "tiny.gguf", "--chat-template", "new.jinja", "--set", "test.number=5"]);
    assert!(said.stderr.contains("anew"), "{}", said.stderr);
    assert_eq!(metadata("test.number"), 5);
    assert_eq!(metadata("tokenizer.chat_template"), "{{ messages[0].content }}".repeat(1000));
    gruff.write("short.jinja", "{{ messages[0].content }}");
    let said = gruff.run(&["edit", "tiny.gguf", "--chat-template", "short.jinja", "--remove", "test.number"]);
    assert!(said.stderr.contains("in place"), "{}", said.stderr);
    assert!(metadata("test.number").is_null());
    assert_eq!(logits(&gruff, "tiny.gguf"), before);
    let file = bytes(&gruff.path("tiny.gguf"));
    gruff.ok(&["edit", "tiny.gguf", "--set", "general.name=Other", "--out", "other.gguf"]);
    assert_eq!(bytes(&gruff.path("tiny.gguf")), file);
    for (arguments, code, part) in [
        (vec!["--remove", "test.absent"], 1, "test.absent"),
        (vec!["--set", "qwen35.block_count=many"], 1, "qwen35.block_count"),
        (vec!["--set", "general.alignment=64"], 1, "alignment"),
        (vec!["--set", "split.count=2"], 1, "split.count"),
        (vec!["--set", "nothing"], 2, "KEY=VALUE"),
        (vec![], 2, "nothing to change"),
        (vec!["--set", "general.name=x", "--out", "other.gguf"], 1, "other.gguf"),
    ] {
        let command: Vec<&str> = ["edit", "tiny.gguf"].into_iter().chain(arguments).collect();
        gruff.run(&command).fails(code, &[part]);
    }
    assert_eq!(bytes(&gruff.path("tiny.gguf")), file);
}
