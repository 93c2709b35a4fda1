//! perplexity, imatrix, compare.

use crate::gruff::Gruff;

const TEXT: &str = "the hen fell in the well, and then the men all helped the hen. ";

fn with_text() -> Gruff {
    let gruff = Gruff::new();
    gruff.write("text.txt", TEXT.repeat(3));
    gruff
}

#[test]
fn perplexity_tells_of_every_window() {
    let gruff = with_text();
    let arguments = ["perplexity", "tiny.gguf", "-f", "text.txt", "--ctx", "32", "--chunks", "3"];
    let text = gruff.ok(&arguments);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("chunk  perplexity"), "{text}");
    assert_eq!(lines.iter().position(|line| line.is_empty()), Some(4), "a line a window: {text}");
    for name in ["perplexity ", "mean nll ", "bits per byte ", "tokens scored "] {
        assert!(lines[5..].iter().any(|line| line.starts_with(name)), "{name}: {text}");
    }
    let json = gruff.json(&[&arguments[..], &["--json", "--plot", "plot.svg"]].concat());
    assert_eq!((&json["tokens"], json["chunks"].as_array().unwrap().len()), (&45.into(), 3));
    let value = json["perplexity"]["value"].as_f64().unwrap();
    assert!(text.contains(&format!("perplexity           {value:.4} ±")), "{text}");
    assert!(std::fs::read_to_string(gruff.path("plot.svg")).unwrap().starts_with("<svg"));
    let piped = gruff.run_with(
        &["perplexity", "tiny.gguf", "-f", "-", "--ctx", "32", "--chunks", "3"],
        TEXT.repeat(3).as_bytes(),
    );
    assert_eq!(piped.ok(), text);
    let strided =
        gruff.json(&["perplexity", "tiny.gguf", "-f", "text.txt", "--ctx", "32", "--stride", "4", "--json"]);
    assert_eq!(strided["tokens"].as_u64().unwrap() % 4, 0);
}

#[test]
fn a_model_is_compared_with_saved_logits() {
    let gruff = with_text();
    gruff.ok(&["perplexity", "tiny.gguf", "-f", "text.txt", "--ctx", "32", "--save-logits", "base.kld"]);
    let text = gruff.ok(&["perplexity", "tiny.gguf", "--kl-divergence", "base.kld", "--chunks", "2"]);
    assert!(text.contains("mean KLD") && text.contains("same top             100.000"), "{text}");
    let json = gruff.json(&["perplexity", "tiny.gguf", "--kl-divergence", "base.kld", "--json"]);
    assert!(json["kld"]["value"].as_f64().unwrap() < 1e-4);
    let whole = std::fs::read(gruff.path("base.kld")).unwrap();
    gruff.write("cut.kld", &whole[..whole.len() - 100]);
    gruff.run(&["perplexity", "tiny.gguf", "--kl-divergence", "cut.kld"]).fails(1, &["cut.kld", "cut off"]);
    gruff
        .run(&["perplexity", "tiny.gguf", "--kl-divergence", "text.txt"])
        .fails(1, &["no file of saved logits"]);
    let again = ["perplexity", "tiny.gguf", "-f", "text.txt", "--ctx", "32", "--save-logits", "base.kld"];
    gruff.run(&again).fails(2, &["base.kld exists"]);
    gruff.ok(&[&again[..], &["--overwrite"]].concat());
}

#[test]
fn tasks_are_scored() {
    let gruff = Gruff::new();
    gruff.write(
        "tasks.jsonl",
        r#"{"ctx": "the hen", "endings": ["fell.", "fell in the well and then fell"], "label": 0}"#,
    );
    let text = gruff.ok(&["perplexity", "tiny.gguf", "--multiple-choice", "tasks.jsonl"]);
    assert!(text.contains("acc                  100.000"), "{text}");
    let json = gruff.json(&["perplexity", "tiny.gguf", "--multiple-choice", "tasks.jsonl", "--json"]);
    assert_eq!((&json["tasks"], &json["acc"]["share"]["value"]), (&1.into(), &1.0.into()));
    gruff.write("bad.jsonl", "{\"ctx\": 1}\n");
    gruff
        .run(&["perplexity", "tiny.gguf", "--multiple-choice", "bad.jsonl"])
        .fails(1, &["bad.jsonl", "line 1"]);
}

#[test]
fn texts_that_cannot_be_measured_are_refused() {
    let gruff = with_text();
    for command in [&["perplexity", "tiny.gguf"][..], &["imatrix", "tiny.gguf", "-o", "out.gguf"]] {
        let run = |more: &[&str]| gruff.run(&[command, more].concat());
        run(&["-f", "text.txt", "--ctx", "512"]).fails(1, &["tokens, but 512 are needed"]);
        run(&["-f", "missing.txt"]).fails(1, &["missing.txt cannot be read"]);
        gruff.write("latin1.txt", [0x66, 0xfc, 0x72]);
        run(&["-f", "latin1.txt"]).fails(1, &["latin1.txt", "UTF-8"]);
        run(&["-f", "text.txt", "--ctx", "0"]).fails(1, &["ctx: 0 tokens"]);
        run(&[]).fails(2, &["--text"]);
    }
    let nowhere =
        ["perplexity", "tiny.gguf", "-f", "text.txt", "--ctx", "32", "--save-logits", "no/base.kld"];
    gruff.run(&nowhere).fails(1, &["no/base.kld cannot be written"]);
    assert!(!gruff.path("out.gguf").exists());
}

#[test]
fn a_matrix_is_collected() {
    let gruff = with_text();
    let arguments = ["imatrix", "tiny.gguf", "-f", "text.txt", "-o", "imatrix.gguf", "--ctx", "32"];
    assert_eq!(gruff.ok(&arguments), "");
    let json = gruff.json(&["inspect", "imatrix.gguf", "--json", "--tensors", "--metadata"]);
    assert_eq!(json["metadata"]["imatrix.datasets"], serde_json::json!(["text.txt"]));
    let names: Vec<&str> =
        json["tensors"].as_array().unwrap().iter().map(|tensor| tensor["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"blk.0.ssm_out.weight.in_sum2") && names.contains(&"blk.3.attn_q.weight.counts"));
    assert!(!names.iter().any(|name| name.starts_with("output")));
    gruff.run(&arguments).fails(2, &["imatrix.gguf exists"]);
    gruff.ok(&[&arguments[..], &["--overwrite", "--process-output"]].concat());
    assert_eq!(std::fs::read_dir(gruff.path(".")).unwrap().count(), 3, "no partial file is left");
}

#[test]
fn checkpoints_are_compared() {
    let gruff = with_text();
    let same = ["compare", "tiny.gguf", "tiny.gguf", "-f", "text.txt", "--ctx", "32", "--tolerance", "0"];
    let text = gruff.ok(&same);
    assert!(text.contains("NMSE of logits       0.000e0") && text.contains("blk.0.ssm_a"), "{text}");
    // The last bytes of the file are those of a weight.
    gruff.damaged("other.gguf", |bytes| {
        let last = bytes.len() - 40;
        bytes[last..].fill(7);
    });
    let json = gruff.json(&["compare", "tiny.gguf", "other.gguf", "--json", "--plot", "plot.svg"]);
    let count = json["summary"]["tensors"].as_u64().unwrap();
    assert_eq!(json["summary"]["equal"].as_u64().unwrap(), count - 1);
    assert!(json["summary"]["worst"]["relative"].as_f64().unwrap() > 0.0 && json["logits"].is_null());
    assert!(std::fs::read_to_string(gruff.path("plot.svg")).unwrap().contains("relative RMS error"));
    let outcome = gruff.run(&["compare", "tiny.gguf", "other.gguf", "--tolerance", "0"]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("1 of") && outcome.stdout.contains("cosine"), "{}", outcome.stderr);
    gruff.run(&["compare", "tiny.gguf", "tiny.gguf", "--tolerance", "NaN"]).fails(2, &["tolerance"]);
    gruff.run(&["compare", "tiny.gguf", "missing.gguf"]).fails(1, &["missing.gguf"]);
}

#[test]
fn a_folder_of_transformers_is_compared() {
    let gruff = with_text();
    gruff.ok(&["dequantize", "tiny.gguf", "folder", "--dtype", "f32", "-q"]);
    let same =
        ["compare", "tiny.gguf", "folder", "-f", "text.txt", "--ctx", "32", "--dtype", "f32", "--json"];
    let json = gruff.json(&[&same[..], &["--tolerance", "1e-6"]].concat());
    assert_eq!(json["b"], "folder");
    assert_eq!((&json["summary"]["only_in_a"], &json["summary"]["only_in_b"]), (&0.into(), &0.into()));
    assert_eq!(json["logits"]["same_top"]["value"], 1.0);
    gruff.write("folder/config.json", "{}");
    gruff.run(&["compare", "tiny.gguf", "folder"]).fails(1, &["config.json"]);
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_work_and_leaves_no_file() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};

    let gruff = Gruff::new();
    gruff.write("text.txt", TEXT.repeat(3000));
    let arguments =
        ["perplexity", "tiny.gguf", "-f", "text.txt", "--ctx", "128", "--save-logits", "base.kld"];
    let mut child = gruff.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    lines.read_line(&mut text).unwrap();
    lines.read_line(&mut text).unwrap();
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    lines.read_to_string(&mut text).unwrap();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{errors}");
    assert!(errors.contains("error: stopped after") && text.contains("tokens scored"), "{errors}{text}");
    let left: Vec<_> =
        std::fs::read_dir(gruff.path(".")).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the model and the text: {left:?}");
}
