//! One-shot runs.

use std::io::Read;
use std::process::Stdio;

use crate::gruff::Gruff;

const GREEDY: [&str; 6] = ["--temperature", "0", "-n", "12", "--threads", "1"];

#[test]
fn the_answer_goes_to_standard_output_alone() {
    let gruff = Gruff::new();
    let outcome = gruff.run(&[&["run", "tiny.gguf", "Hello"], &GREEDY[..]].concat());
    assert!(outcome.stderr.contains("tok/s"), "{}", outcome.stderr);
    let text = outcome.ok();
    let json = gruff.json(&[&["run", "tiny.gguf", "Hello", "--json"], &GREEDY[..]].concat());
    assert_eq!(text.trim_end_matches('\n'), json["text"].as_str().unwrap().trim_end_matches('\n'));
    assert_eq!(
        json["ids"].as_array().unwrap().len() as u64,
        json["usage"]["completion_tokens"].as_u64().unwrap()
    );
    assert!(["stop", "length"].contains(&json["finish_reason"].as_str().unwrap()));
    assert!(json["timings"]["predicted_per_second"].is_f64());
    let quiet = gruff.run(&[&["run", "tiny.gguf", "Hello", "--quiet"], &GREEDY[..]].concat());
    assert_eq!((quiet.stderr.as_str(), quiet.stdout), ("", text));
    let piped = gruff.run_with(&[&["run", "tiny.gguf", "-", "--json"], &GREEDY[..]].concat(), b"Hello").ok();
    let piped: serde_json::Value = serde_json::from_str(&piped).unwrap();
    assert_eq!(piped["ids"], json["ids"]);
}

#[test]
fn raw_prompts_are_continued_as_they_are() {
    let gruff = Gruff::new();
    let json = gruff.json(&[&["run", "tiny.gguf", "the", "--raw", "--json"], &GREEDY[..]].concat());
    let ids = gruff.ok(&["tokenize", "tiny.gguf", "the", "--ids", "--add-special"]);
    let prompt: Vec<String> =
        json["prompt_ids"].as_array().unwrap().iter().map(|id| id.to_string()).collect();
    assert_eq!(prompt.join(" "), ids.trim_end());
}

#[test]
fn system_and_template_reach_the_prompt() {
    let gruff = Gruff::new();
    gruff.write("own.jinja", "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}");
    let run = ["run", "tiny.gguf", "b", "--system", "a", "--chat-template", "own.jinja", "--json"];
    let json = gruff.json(&[&run[..], &GREEDY].concat());
    let ids: Vec<String> = json["prompt_ids"].as_array().unwrap().iter().map(|id| id.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    assert_eq!(gruff.ok(&[&["detokenize", "tiny.gguf"], &ids[..]].concat()), "[system]a[user]b");
}

#[test]
fn reasoning_is_kept_apart() {
    let gruff = Gruff::new();
    let run = |mode| {
        gruff.json(&[&["run", "tiny.gguf", "Hi", "--json", "--reasoning", mode], &GREEDY[..]].concat())
    };
    // The template opens reasoning and twelve random tokens do not close it.
    let on = run("on");
    assert_eq!(on["text"], "");
    assert!(!on["reasoning"].as_str().unwrap().is_empty());
    let off = run("off");
    assert!(off["reasoning"].is_null());
    let outcome = gruff.run(&[&["run", "tiny.gguf", "Hi", "--reasoning", "on"], &GREEDY[..]].concat());
    assert!(outcome.stderr.contains(on["reasoning"].as_str().unwrap().trim()), "{}", outcome.stderr);
    assert_eq!(outcome.ok(), "\n");
}

#[test]
fn a_seed_repeats_and_sampling_varies() {
    let gruff = Gruff::new();
    let ids = |seed: &str| {
        let run = ["run", "tiny.gguf", "Hi", "--json", "-n", "16", "--temperature", "1.5", "--seed", seed];
        gruff.json(&run)["ids"].clone()
    };
    assert_eq!(ids("1"), ids("1"));
    assert!((2..6).any(|seed| ids(&seed.to_string()) != ids("1")));
}

#[test]
fn deterministic_answers_repeat_without_a_seed() {
    let gruff = Gruff::new();
    let run = ["run", "tiny.gguf", "Hi", "--json", "-n", "16", "--temperature", "1.5", "--device", "cpu"];
    let ids = |more: &[&str]| gruff.json(&[&run[..], more].concat())["ids"].clone();
    let repeated = ids(&["--deterministic", "--threads", "1"]);
    assert_eq!(repeated, ids(&["--deterministic", "--threads", "3"]));
    assert_eq!(repeated, ids(&["--seed", "0"]));
    assert_ne!(repeated, ids(&["--deterministic", "--seed", "1"]));
    gruff
        .run(&["run", "tiny.gguf", "Hi", "--deterministic"])
        .fails(1, &["--device auto", "free memory", "--device cpu or cuda"]);
    gruff.run(&[&run[..], &["--deterministic", "--max-time", "9"]].concat()).fails(1, &["max_time"]);
}

#[test]
fn threads_and_the_exact_path_are_honoured() {
    let gruff = Gruff::new();
    let ids = |more: &[&str]| {
        gruff.json(&[&["run", "tiny.gguf", "Hi", "--json", "--temperature", "0", "-n", "12"], more].concat())
            ["ids"]
            .clone()
    };
    assert_eq!(ids(&["--threads", "1"]), ids(&["--threads", "3"]));
    assert_eq!(ids(&["--dtype", "f32"]), ids(&["--dtype", "f32", "--device", "reference"]));
}

#[test]
fn verbose_tells_the_memory_plan() {
    let gruff = Gruff::new();
    let outcome = gruff.run(&[&["run", "tiny.gguf", "Hi", "-v", "--ctx", "128"], &GREEDY[..]].concat());
    assert!(
        outcome.stderr.contains("memory: weights") && outcome.stderr.contains("device: cpu"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_closed_pipe_is_no_error() {
    let gruff = Gruff::new();
    for arguments in [
        &["run", "tiny.gguf", "Hi", "-n", "200", "--temperature", "1", "--seed", "3"][..],
        &["inspect", "tiny.gguf", "--tensors", "--metadata", "--json"],
        &["completions", "bash"],
        &["doctor"],
    ] {
        let mut child = gruff
            .command(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut first).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !stderr.contains("panicked"), "{arguments:?}: {stderr}");
    }
}
