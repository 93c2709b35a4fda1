//! What goes wrong is said in one paragraph that names the thing; exit code 1, or 2 for the command line itself.

use crate::gruff::Gruff;

#[test]
fn command_lines_that_cannot_be_meant() {
    let gruff = Gruff::new();
    let table: [(&[&str], &str); 44] = [
        (&["dance"], "dance"),
        (&["run"], "prompt is empty"),
        (&["run", "tiny.gguf", "Hi", "--frobnicate"], "--frobnicate"),
        (&["run", "tiny.gguf", "Hi", "--temperature", "-1"], "--temperature"),
        (&["run", "tiny.gguf", "Hi", "--temperature", "hot"], "hot"),
        (&["run", "tiny.gguf", "Hi", "--temperature", "NaN"], "--temperature"),
        (&["run", "tiny.gguf", "Hi", "--top-p", "1.5"], "--top-p"),
        (&["run", "tiny.gguf", "Hi", "--min-p", "2"], "--min-p"),
        (&["run", "tiny.gguf", "Hi", "--repetition-penalty", "0"], "--repetition-penalty"),
        (&["run", "tiny.gguf", "Hi", "-n", "0"], "--max-new-tokens"),
        (&["run", "tiny.gguf", "Hi", "--ctx", "0"], "--ctx"),
        (&["run", "tiny.gguf", "Hi", "--threads", "0"], "--threads"),
        (&["run", "tiny.gguf", "Hi", "--reasoning", "maybe"], "maybe"),
        (&["run", "tiny.gguf", "Hi", "--memory", "much"], "--memory"),
        (&["run", "tiny.gguf", "Hi", "--raw", "--system", "x"], "--system"),
        (&["run", "tiny.gguf", ""], "prompt is empty"),
        (&["tokenize", "tiny.gguf", "x", "--ids", "--json"], "--json"),
        (&["detokenize", "tiny.gguf", "twelve"], "twelve"),
        (&["render", "messages.json"], "--template"),
        (&["render", "tiny.gguf", "m.json", "--kwargs", "{"], "--kwargs"),
        (&["logits", "tiny.gguf", "--ids", "1,x", "--out", "a.npy"], "1,x"),
        (&["logits", "tiny.gguf", "--ids", "1", "--out", "a.txt"], "a.txt"),
        (&["logits", "tiny.gguf", "--ids", "1,2,3", "--ctx", "2", "--out", "a.npy"], "3 tokens, but --ctx 2"),
        (&["run", "tiny.gguf", "Hi", "--device", "tpu"], "auto, cpu, cuda, reference"),
        (&["logits", "tiny.gguf", "--ids", "1", "--out", "a.npy", "--device", "tpu"], "tpu"),
        (&["bench", "-m", "tiny.gguf", "--device", "tpu"], "tpu"),
        (&["run", "tiny.gguf", "Hi", "--device", "cuda:0,tpu"], "cuda:0,cuda:1"),
        (&["run", "tiny.gguf", "Hi", "--device", "cuda,cuda"], "several"),
        (&["run", "tiny.gguf", "Hi", "--gpu-layers", "-1"], "--gpu-layers <N>"),
        (&["bench", "-m", "tiny.gguf", "--cpu-moe", "--n-cpu-moe", "3"], "cannot be used with"),
        (&["compare", "tiny.gguf", "tiny.gguf", "--tolerance", "inf"], "--tolerance"),
        (&["compare", "tiny.gguf", "tiny.gguf", "--ctx", "8"], "--text"),
        (&["perplexity", "tiny.gguf", "-f", "a.txt", "--tasks", "3"], "--tasks"),
        (&["perplexity", "tiny.gguf", "-f", "a.txt", "--plot", "a", "--save-logits", "a"], "the same file"),
        (&["bench"], "model"),
        (&["bench", "-m", "tiny.gguf", "-p", "0", "-n", "0"], "nothing to measure"),
        (&["bench", "-m", "tiny.gguf", "-o", "xml"], "xml"),
        (&["completions", "cmd.exe"], "cmd.exe"),
        (&["run", "tiny.gguf", "Hi", "-n", "-1"], "above 0"),
        (&["run", "tiny.gguf", "Hi", "--seed", "-1"], "--seed <N>"),
        (&["run", "tiny.gguf", "Hi", "--ctx", "-5"], "--ctx <N|auto>"),
        (&["bench", "-m", "tiny.gguf", "-p", "-1"], "\"-1\" is neither a number"),
        (&["detokenize", "tiny.gguf", "-1"], "\"-1\" is not a token id"),
        (&["logits", "tiny.gguf", "--ids", "-1", "--out", "a.npy"], "\"-1\" is not a token id"),
    ];
    for (arguments, part) in table {
        gruff.run(arguments).fails(2, &[part]);
    }
}

#[test]
fn models_that_are_not_there() {
    let gruff = Gruff::new();
    for command in ["inspect", "tokenize", "doctor", "download"] {
        gruff.run(&[command, "missing.gguf"]).fails(1, &["missing.gguf"]);
    }
    gruff.run(&["run", "missing.gguf", "Hi"]).fails(1, &["missing.gguf"]);
    gruff
        .run(&["run", "someone/absent-GGUF:Q4_K_M", "Hi"])
        .fails(1, &["someone/absent-GGUF", "HF_HUB_OFFLINE"]);
    gruff.run(&["run", "not a name", "Hi"]).fails(1, &["not a name"]);
}

#[test]
fn files_that_are_damaged() {
    let gruff = Gruff::new();
    gruff.write("text.gguf", "This is not a model.");
    gruff.write("empty.gguf", "");
    gruff.damaged("cut.gguf", |bytes| bytes.truncate(bytes.len() - 1000));
    gruff.damaged("header.gguf", |bytes| bytes.truncate(200));
    for name in ["text.gguf", "empty.gguf", "cut.gguf", "header.gguf"] {
        gruff.run(&["run", name, "Hi"]).fails(1, &[name]);
        gruff.run(&["inspect", name]).fails(1, &[name]);
    }
}

#[test]
fn architectures_and_tokenizers_that_are_unknown() {
    let gruff = Gruff::new();
    let replace = |bytes: &mut Vec<u8>, old: &[u8], new: &[u8]| {
        let at = bytes.windows(old.len()).position(|window| window == old).unwrap();
        bytes[at..at + old.len()].copy_from_slice(new);
    };
    gruff.damaged("other.gguf", |bytes| replace(bytes, b"qwen35", b"qwen99"));
    gruff.run(&["run", "other.gguf", "Hi"]).fails(1, &["other.gguf", "qwen99", "qwen35"]);
    assert!(gruff.ok(&["inspect", "other.gguf"]).contains("cannot run it"));
    gruff.damaged("pre.gguf", |bytes| replace(bytes, b"qwen2", b"qwen7"));
    gruff.run(&["tokenize", "pre.gguf", "Hi"]).fails(1, &["qwen7"]);
    assert_eq!(gruff.ok(&["tokenize", "pre.gguf", "he", "--ids", "--pre-tokenizer", "qwen2"]), "256\n");
    gruff.damaged("plain.gguf", |bytes| replace(bytes, b"chat_template", b"chat_temp1ate"));
    gruff.run(&["run", "plain.gguf", "Hi"]).fails(1, &["chat_template", "--raw"]);
}

#[test]
fn more_than_there_is_room_for() {
    let gruff = Gruff::new();
    gruff
        .run(&["run", "tiny.gguf", "Hi", "--device", "cpu", "--gpu-layers", "2"])
        .fails(1, &["--device auto"]);
    gruff.run(&["run", "tiny.gguf", "Hi", "--ctx", "100000"]).fails(1, &["ctx", "100000", "512"]);
    gruff
        .run(&["run", "tiny.gguf", "Hi", "--memory", "1M"])
        .fails(1, &["not enough memory", "weights", "KV"]);
    gruff.run(&["run", "tiny.gguf", &"x".repeat(600), "--raw"]).fails(1, &["prompt", "600", "512"]);
    let ids = (0..600).map(|_| "1").collect::<Vec<_>>().join(",");
    gruff.run(&["logits", "tiny.gguf", "--ids", &ids, "--out", "a.npy"]).fails(1, &["600", "512"]);
    assert!(!gruff.path("a.npy").exists());
}

#[test]
fn ids_and_files_out_of_range() {
    let gruff = Gruff::new();
    gruff.run(&["detokenize", "tiny.gguf", "5", "70000"]).fails(1, &["70000", "265"]);
    gruff.run(&["logits", "tiny.gguf", "--ids", "5,70000", "--out", "a.npy"]).fails(1, &["70000", "265"]);
    gruff
        .run(&["logits", "tiny.gguf", "--ids", "5", "--out", "no/folder/a.npy"])
        .fails(1, &["no/folder/a.npy"]);
    assert!(!gruff.path("a.npy").exists());
    gruff.run(&["render", "tiny.gguf", "absent.json"]).fails(1, &["absent.json"]);
    gruff.write("bad.json", "[{\"role\": ");
    gruff.run(&["render", "tiny.gguf", "bad.json"]).fails(1, &["bad.json", "line 1"]);
    gruff.write("bad.jinja", "{% if %}");
    gruff.write("ok.json", "[]");
    gruff.run(&["render", "--template", "bad.jinja", "ok.json"]).fails(1, &["bad.jinja"]);
    gruff.run_with(&["tokenize", "tiny.gguf", "-"], b"ab\xff").fails(1, &["UTF-8", "byte 2"]);
}

/// What a file says about itself must not steer the terminal, or fill it.
#[test]
fn files_do_not_write_on_the_terminal() {
    let gruff = Gruff::new();
    gruff.write("ok.json", r#"[{"role": "user", "content": "x"}]"#);
    gruff.write("steer.jinja", "{{ raise_exception('\u{1b}]0;mine\u{7}\u{202e}' ~ 'x' * 100000) }}");
    let outcome = gruff.run(&["render", "--template", "steer.jinja", "ok.json"]);
    assert!(!outcome.stderr.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{}", outcome.stderr);
    assert!(outcome.stderr.len() < 5000, "{} bytes", outcome.stderr.len());
    outcome.fails(1, &["\\u{1b}]0;mine\\u{7}\\u{202e}", "more characters"]);
}

#[cfg(unix)]
#[test]
fn what_is_no_file_and_an_output_that_is_full() {
    let gruff = Gruff::new();
    gruff.run(&["inspect", "/dev/null"]).fails(1, &["/dev/null is no ordinary file", "save it"]);
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    for arguments in
        [&["inspect", "tiny.gguf"][..], &["tokenize", "tiny.gguf", "he"], &["completions", "bash"]]
    {
        let full = std::fs::File::create("/dev/full").unwrap();
        let output = gruff.command(arguments).stdout(full).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("standard output cannot be written: "), "{stderr}");
    }
}

#[test]
fn a_path_is_said_once() {
    let gruff = Gruff::new();
    gruff.damaged("keyless.gguf", |bytes| {
        let key = b"tokenizer.ggml.tokens";
        let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
        bytes[at + key.len() - 1] = b'z';
    });
    let outcome = gruff.run(&["tokenize", "keyless.gguf", "Hi"]);
    assert_eq!(outcome.stderr.matches("keyless.gguf").count(), 1, "{}", outcome.stderr);
    outcome.fails(1, &["tokenizer.ggml.tokens"]);
}

#[test]
fn models_without_a_vocabulary_run_on_ids() {
    let gruff = Gruff::new();
    gruff.damaged("plain.gguf", |bytes| {
        let (key, kind) = (b"tokenizer.ggml.model", b"gpt2");
        let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
        let value = at + bytes[at..].windows(4).position(|window| window == kind).unwrap();
        bytes[value..value + 4].copy_from_slice(b"none");
    });
    for name in ["tiny.gguf", "plain.gguf"] {
        gruff.ok(&["logits", name, "--ids", "1,2,3", "--out", &format!("{name}.npy")]);
    }
    assert!(
        std::fs::read(gruff.path("tiny.gguf.npy")).unwrap()
            == std::fs::read(gruff.path("plain.gguf.npy")).unwrap()
    );
    gruff.ok(&["bench", "-m", "plain.gguf", "-p", "4", "-n", "1", "-r", "1", "--no-warmup"]);
    gruff.run(&["run", "plain.gguf", "Hi"]).fails(1, &["plain.gguf", "no vocabulary"]);
}

#[test]
fn what_was_measured_before_a_failure_is_a_whole_document() {
    let gruff = Gruff::new();
    let outcome = gruff.run(&[
        "bench",
        "-m",
        "tiny.gguf,absent.gguf",
        "-p",
        "4",
        "-n",
        "0",
        "-r",
        "1",
        "--no-warmup",
        "-o",
        "json",
    ]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("absent.gguf"), "{}", outcome.stderr);
    let document: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(document.as_array().unwrap().len(), 1);
}
