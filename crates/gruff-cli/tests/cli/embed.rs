//! embed.

use crate::gruff::Gruff;

fn numbers(line: &str) -> Vec<f32> {
    line.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

#[test]
fn texts_become_vectors() {
    let gruff = Gruff::new();
    let lines = gruff.ok(&["embed", "tiny.gguf", "the hell", "he"]);
    let vectors: Vec<Vec<f32>> = lines.lines().map(numbers).collect();
    assert_eq!(vectors.iter().map(Vec::len).collect::<Vec<_>>(), [64, 64]);
    for vector in &vectors {
        assert!((vector.iter().map(|value| value * value).sum::<f32>() - 1.0).abs() < 1e-4);
    }
    assert_ne!(vectors[0], vectors[1]);
    let piped = gruff.run_with(&["embed", "tiny.gguf", "-"], b"the hell\nhe\n").ok();
    assert_eq!(piped, lines);

    let json = gruff.json(&["embed", "tiny.gguf", "--json", "the hell", "he"]);
    assert_eq!((&json["object"], &json["data"][1]["index"]), (&"list".into(), &1.into()));
    let first: Vec<f32> = serde_json::from_value(json["data"][0]["embedding"].clone()).unwrap();
    assert_eq!(first, vectors[0]);
    assert!(json["usage"]["prompt_tokens"].as_u64().unwrap() > 2);
}

#[test]
fn pooling_is_chosen() {
    let gruff = Gruff::new();
    let of = |arguments: &[&str]| gruff.ok(&[&["embed", "tiny.gguf", "the hell"], arguments].concat());
    let last = of(&[]);
    assert_eq!(of(&["--pooling", "last"]), last);
    assert_ne!(of(&["--pooling", "mean"]), last);
    assert_ne!(of(&["--pooling", "cls"]), of(&["--pooling", "mean"]));
    let length = numbers(&of(&["--no-normalize"])).iter().map(|value| value * value).sum::<f32>();
    assert!((length - 1.0).abs() > 1e-2, "{length}");
    let outcome = gruff.run(&["embed", "tiny.gguf", "a", "--pooling", "max"]);
    assert_eq!(outcome.code, Some(2));
    let outcome = gruff.run_with(&["embed", "tiny.gguf"], b"");
    assert!(outcome.code != Some(0) && outcome.stderr.contains("no text"), "{}", outcome.stderr);
    let outcome = gruff.run(&["embed", "tiny.gguf", ""]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("text 0"), "{}", outcome.stderr);
}
