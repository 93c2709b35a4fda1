//! quantize: the file it makes, what it tells, what it refuses.

use crate::gruff::{Gruff, bytes};

#[test]
fn a_quantized_model_runs() {
    let gruff = Gruff::new();
    gruff.ok(&["quantize", "tiny.gguf", "f32.gguf", "F32", "--allow-requantize", "--threads", "2"]);
    let outcome = gruff.run(&["quantize", "f32.gguf", "q4.gguf", "q4_k_m", "--tensor-type", "attn_q=q8_0"]);
    assert!(outcome.stderr.contains("bits a value"), "{}", outcome.stderr);
    outcome.ok();
    let json = gruff.json(&["inspect", "q4.gguf", "--json", "--metadata"]);
    assert_eq!(json["metadata"]["general.file_type"], 15);
    assert!(bytes(&gruff.path("q4.gguf")).len() < bytes(&gruff.path("f32.gguf")).len());
    gruff.ok(&["logits", "q4.gguf", "--ids", "1,2,3", "--out", "a.npy"]);
}

#[test]
fn a_pattern_that_matches_nothing_is_told() {
    let gruff = Gruff::new();
    let arguments = ["quantize", "tiny.gguf", "Q4_0", "--dry-run", "--tensor-type", "ffn_dwon=q8_0"];
    let outcome = gruff.run(&arguments);
    assert!(outcome.stderr.contains("--tensor-type ffn_dwon=Q8_0 matches no tensor"), "{}", outcome.stderr);
    let outcome = gruff.run(&[&arguments[..5], &["ffn_down=q8_0"]].concat());
    assert!(!outcome.stderr.contains("matches no tensor"), "{}", outcome.stderr);
}

#[test]
fn a_dry_run_tells_what_a_run_does() {
    let gruff = Gruff::new();
    gruff.ok(&["quantize", "tiny.gguf", "f32.gguf", "F32", "--allow-requantize"]);
    let json = gruff.json(&["quantize", "f32.gguf", "Q3_K_M", "--dry-run", "--json"]);
    let text = gruff.ok(&["quantize", "f32.gguf", "Q3_K_M", "--dry-run"]);
    assert!(text.lines().last().unwrap().starts_with("Q3_K_M: "), "{text}");
    assert!(!gruff.path("Q3_K_M").exists());
    let done = gruff.json(&["quantize", "f32.gguf", "out.gguf", "Q3_K_M", "--json"]);
    assert_eq!((&done["tensors"], &done["file"]), (&json["tensors"], &"out.gguf".into()));
    let tensors = gruff.json(&["inspect", "out.gguf", "--tensors", "--json"])["tensors"].clone();
    for (planned, found) in json["tensors"].as_array().unwrap().iter().zip(tensors.as_array().unwrap()) {
        for (planned, found) in
            [("name", "name"), ("type", "type"), ("bytes", "bytes")].map(|(p, f)| (&planned[p], &found[f]))
        {
            assert_eq!(planned, found);
        }
    }
}

#[test]
fn what_cannot_be_meant_or_done_is_said() {
    let gruff = Gruff::new();
    let usage: [(&[&str], &str); 8] = [
        (&["quantize", "tiny.gguf"], "PRESET"),
        (&["quantize", "tiny.gguf", "Q4_K_M"], "OUT and PRESET"),
        (&["quantize", "tiny.gguf", "out.gguf", "Q4_K_X"], "Q4_K_M"),
        (&["quantize", "tiny.gguf", "out.gguf", "Q4_K_M", "--tensor-type", "x"], "PATTERN=TYPE"),
        (&["quantize", "tiny.gguf", "out.gguf", "Q4_K_M", "--output-tensor-type", "i8"], "I8"),
        (&["quantize", "tiny.gguf", "out.gguf", "Q4_K_M", "--override-kv", "x"], "KEY=TYPE:VALUE"),
        (&["quantize", "tiny.gguf", "o.gguf", "Q4_0", "--override-kv", "split.count=int:2"], "gruff split"),
        (
            &[
                "quantize",
                "tiny.gguf",
                "o.gguf",
                "Q4_0",
                "--leave-output-tensor",
                "--output-tensor-type",
                "q8_0",
            ],
            "--leave-output-tensor",
        ),
    ];
    for (arguments, part) in usage {
        gruff.run(arguments).fails(2, &[part]);
    }
    gruff.run(&["quantize", "tiny.gguf", "out.gguf", "Q4_0"]).fails(1, &["already", "--allow-requantize"]);
    gruff.run(&["quantize", "tiny.gguf", "tiny.gguf", "Q4_0"]).fails(1, &["tiny.gguf", "exists"]);
    gruff.write("noise.dat", "0123456789");
    let noise = ["quantize", "tiny.gguf", "out.gguf", "Q4_0", "--imatrix", "noise.dat"];
    gruff.run(&noise).fails(1, &["noise.dat", "importance matrix"]);
    assert!(!gruff.path("out.gguf").exists());
}
