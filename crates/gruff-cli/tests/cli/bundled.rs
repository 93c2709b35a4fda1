//! The model that is part of the program.

use crate::gruff::Gruff;

#[test]
fn a_lone_prompt_goes_to_the_bundled_model() {
    let gruff = Gruff::new();
    let outcome = gruff.run(&["run", "What is the capital of France?"]);
    assert!(outcome.stderr.contains("bundled model"), "{}", outcome.stderr);
    assert_eq!(outcome.ok(), "The capital of France is Paris.\n");
    let piped = gruff.run_with(&["run", "--quiet"], b"What is the opposite of hot?").ok();
    assert_eq!(piped, "The opposite of \"hot\" is \"cold\".\n");
    let named = gruff.json(&["run", "bundled", "Hello!", "--json"]);
    assert_eq!((&named["model"], &named["finish_reason"]), (&"bundled".into(), &"stop".into()));
}

#[test]
fn it_thinks_only_when_asked_to() {
    let gruff = Gruff::new();
    let ask =
        |mode: &str| gruff.json(&["run", "What is the capital of Italy?", "--json", "--reasoning", mode]);
    assert!(ask("auto")["reasoning"].is_null());
    let thoughtful = ask("on");
    assert!(thoughtful["reasoning"].as_str().is_some_and(|thought| !thought.trim().is_empty()));
    assert_eq!(thoughtful["text"].as_str().map(str::trim), Some("The capital of Italy is Rome."));
}

#[test]
fn other_commands_take_it_by_its_name() {
    let gruff = Gruff::new();
    let inspected = gruff.json(&["inspect", "bundled", "--json"]);
    assert_eq!((&inspected["id"], &inspected["architecture"]), (&"bundled".into(), &"qwen35".into()));
    assert!(gruff.ok(&["inspect", "bundled"]).contains("bundled"));
    assert_eq!(gruff.ok(&["tokenize", "bundled", "the", "--ids"]).split_whitespace().count(), 1);
    let missing = gruff.run(&["run", "missing.gguf", "Hi"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.contains("missing.gguf"), "{}", missing.stderr);
}

#[test]
fn what_fits_is_told_from_headers() {
    let gruff = Gruff::new();
    let report = gruff.json(&["fit", "bundled", "--memory", "1G", "--ctx", "1024", "--json"]);
    let variant = &report["variants"][0];
    assert_eq!(
        (&variant["fits"], &variant["recommended"], &variant["ctx"]),
        (&true.into(), &true.into(), &1024.into())
    );
    let parts = ["weights", "kv", "state", "prefix_cache", "scratch"];
    let parts = parts.map(|part| variant["memory"][part].as_u64().unwrap());
    assert_eq!(variant["memory"]["total"].as_u64().unwrap(), parts.iter().sum::<u64>());
    let table = gruff.ok(&["fit", ".", "--memory", "1M"]);
    assert!(table.contains("tiny.gguf") && table.contains("none fits"), "{table}");
    assert!(gruff.run(&["fit", "missing.gguf"]).stderr.contains("missing.gguf"));
    gruff.run(&["fit", "tiny.gguf", "--ctx", "0"]).fails(2, &["--ctx"]);
}
