use gruff::{EmbeddingOptions, Pooling};
use serde_json::{Value, json};

use crate::client::{Running, model, tokenizer};

const PATH: &str = "/v1/embeddings";

fn vector(answer: &Value, index: usize) -> Vec<f32> {
    let entry = &answer["data"][index];
    assert_eq!(entry["index"], index);
    entry["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn texts_and_ids_are_embedded_as_the_library_does() {
    let server = Running::shared();
    let texts = ["A cat sat on the mat.", "Paris"];
    let ids: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer().encode(text).unwrap()).collect();
    let options = EmbeddingOptions { pooling: Pooling::Last, normalize: true };
    let expected = model().embed(ids.clone(), &options).unwrap();
    let both = server.post(PATH, &json!({"model": "bundled", "input": texts})).ok();
    assert_eq!((vector(&both, 0), vector(&both, 1)), (expected[0].clone(), expected[1].clone()));
    let count = ids[0].len() + ids[1].len();
    assert_eq!(both["usage"], json!({"prompt_tokens": count, "total_tokens": count}));
    for input in [json!(texts[1]), json!(ids[1]), json!([ids[1]])] {
        assert_eq!(vector(&server.post(PATH, &json!({"input": input})).ok(), 0), expected[1]);
    }
    // Groups change nothing.
    let many = vec![texts[0]; 19];
    let many = server.post(PATH, &json!({"input": many, "encoding_format": "float"})).ok();
    assert!((0..19).all(|index| vector(&many, index) == expected[0]));
    let short = server.post(PATH, &json!({"input": texts[1], "dimensions": 16})).ok();
    let short = vector(&short, 0);
    let length: f32 = short.iter().map(|x| x * x).sum();
    assert!(short.len() == 16 && (length - 1.0).abs() < 1e-5);
    let scale = short[0] / expected[1][0];
    assert!(short.iter().zip(&expected[1]).all(|(short, whole)| (short - whole * scale).abs() < 1e-5));
    let coded = server.post(PATH, &json!({"input": texts[1], "encoding_format": "base64"})).ok();
    assert_eq!(
        coded["data"][0]["embedding"].as_str().unwrap().len(),
        (expected[1].len() * 4).div_ceil(3) * 4
    );
}

#[test]
fn what_cannot_be_embedded_or_ranked_is_refused_by_name() {
    let server = Running::shared();
    for (request, param) in [
        (json!({"input": ""}), "input[0]"),
        (json!({"input": ["a", ""]}), "input[1]"),
        (json!({"input": []}), "input"),
        (json!({"input": [999_999_999]}), "input[0]"),
        (json!({"input": "word ".repeat(3000)}), "input[0]"),
        (json!({"input": vec!["a"; 3000]}), "input"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "dimensions": 100_000}), "dimensions"),
        (json!({"input": "a", "encoding_format": "ubyte"}), "encoding_format"),
        (json!({"input": "a", "frobnicate": 1}), "frobnicate"),
    ] {
        assert_eq!(server.post(PATH, &request).error(400)["param"], param, "{param}");
    }
    assert_eq!(server.post(PATH, &json!({"model": "x", "input": "a"})).error(404)["param"], "model");
    for path in ["/v1/rerank", "/rerank"] {
        let error = server.post(path, &json!({"query": "q", "documents": ["a", "b"]})).error(501);
        assert_eq!(error["code"], "not_supported");
    }
}
