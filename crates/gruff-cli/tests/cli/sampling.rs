//! How `gruff run` is told to choose tokens, on the bundled model.

use crate::gruff::{Gruff, Outcome};

const QUESTION: &str = "What is the capital of France?";

fn run(gruff: &Gruff, arguments: &[&str]) -> Outcome {
    gruff.run(&[&["run", QUESTION, "--quiet"], arguments].concat())
}

#[test]
fn an_answer_is_json_of_a_schema() {
    let gruff = Gruff::new();
    let schema = r#"{"type": "object", "properties": {"city": {"type": "string", "maxLength": 20},
        "large": {"type": "boolean"}}, "required": ["city", "large"], "additionalProperties": false}"#;
    gruff.write("schema.json", schema);
    let answers = [schema, "schema.json"].map(|given| {
        let text = run(&gruff, &["--temperature", "0", "-n", "300", "--json-schema", given]).ok();
        serde_json::from_str::<serde_json::Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    });
    assert!(answers[0]["city"].is_string() && answers[0]["large"].is_boolean(), "{}", answers[0]);
    assert_eq!(answers[0].as_object().map(|object| object.len()), Some(2));
    assert_eq!(answers[0], answers[1], "a file says the same");
}

#[test]
fn an_answer_matches_its_regex_or_grammar() {
    let gruff = Gruff::new();
    let digits = run(&gruff, &["--regex", "[0-9]{4}"]).ok();
    assert!(digits.trim_end().len() == 4 && digits.trim_end().bytes().all(|byte| byte.is_ascii_digit()));
    gruff.write("answer.gbnf", r#"root ::= "yes" | "no""#);
    let answer = run(&gruff, &["--grammar-file", "answer.gbnf"]).ok();
    assert!(["yes", "no"].contains(&answer.trim_end()), "{answer}");
}

#[test]
fn a_stop_string_ends_the_answer_before_it() {
    let gruff = Gruff::new();
    assert_eq!(run(&gruff, &["--temperature", "0"]).ok(), "The capital of France is Paris.\n");
    assert_eq!(run(&gruff, &["--temperature", "0", "--stop", " France"]).ok(), "The capital of\n");
    // Inside a word, and the first of several that is said.
    let several = ["--temperature", "0", "--stop", "Rome", "--stop", "apital"];
    assert_eq!(run(&gruff, &several).ok(), "The c\n");
    let json = gruff.json(&[&["run", QUESTION, "--json"], &several[..]].concat());
    assert_eq!((&json["text"], &json["finish_reason"]), (&"The c".into(), &"stop".into()));
}

#[test]
fn a_seed_repeats_an_answer() {
    let gruff = Gruff::new();
    let ids = |seed: &str, more: &[&str]| {
        let drawn = ["run", QUESTION, "--json", "-n", "24", "--temperature", "2", "--seed", seed];
        gruff.json(&[&drawn, more].concat())["ids"].clone()
    };
    assert_eq!(ids("7", &[]), ids("7", &[]));
    assert!((8..12).any(|seed| ids(&seed.to_string(), &[]) != ids("7", &[])));
    assert_eq!(ids("7", &[]), ids("7", &["--prompt-lookup-num-tokens", "4"]), "drafts change nothing");
    let given = ["--generation-config", r#"{"seed": 9, "temperature": 0.1}"#];
    assert_eq!(ids("7", &[]), ids("7", &given), "flags go first");
}

#[test]
fn what_cannot_be_meant_names_its_flag_or_field() {
    let gruff = Gruff::new();
    for (arguments, part) in [
        (&["--top-p", "0"][..], "--top-p"),
        (&["--temperature", "-1"], "--temperature"),
        (&["--mirostat", "3"], "--mirostat"),
        (&["--num-beams", "0"], "--num-beams"),
        (&["--xtc-threshold", "0.1"], "--xtc-probability"),
        (&["--regex", "a", "--json-schema", "{}"], "--json-schema"),
    ] {
        run(&gruff, arguments).fails(2, &[part]);
    }
    for (arguments, part) in [
        (&["--min-new-tokens", "9", "-n", "3"][..], "min_new_tokens: 9 is larger than max_new_tokens (3)"),
        (&["--max-time", "0"], "max_time"),
        (&["--stop", ""], "stop_strings"),
        (&["--num-beams", "2", "--prompt-lookup-num-tokens", "3"], "prompt_lookup_num_tokens"),
        (&["--json-schema", "{\"type\": "], "--json-schema"),
        (&["--json-schema", r#"{"type": "number", "multipleOf": "x"}"#], "constraint"),
        (&["--regex", "("], "constraint"),
        (&["--grammar-file", "missing.gbnf"], "missing.gbnf"),
        (&["--generation-config", r#"{"temprature": 1}"#], "temprature"),
        (&["--generation-config", r#"{"num_beams": 2, "output_attentions": true}"#], "output_attentions"),
    ] {
        run(&gruff, arguments).fails(1, &[part]);
    }
}
