use serde_json::json;

use crate::client::Running;

#[test]
fn tokens_and_back() {
    let server = Running::shared();
    let tokens = server.post("/tokenize", &json!({"content": "Hello world <b>é</b>"})).ok()["tokens"].clone();
    assert!(tokens.as_array().unwrap().len() > 2);
    let content = server.post("/detokenize", &json!({"tokens": tokens})).ok();
    assert_eq!(content["content"], "Hello world <b>é</b>");
    let pieces = server.post("/tokenize", &json!({"content": "Hello", "with_pieces": true})).ok();
    assert!(pieces["tokens"][0]["piece"].is_string());
    // vLLM's form, which adds special tokens unless told otherwise.
    let plain = server.post("/tokenize", &json!({"prompt": "Hello", "add_special_tokens": false})).ok();
    assert_eq!(plain["tokens"], server.post("/tokenize", &json!({"content": "Hello"})).ok()["tokens"]);
    assert_eq!(plain["count"], plain["tokens"].as_array().unwrap().len());
    let text = server.post("/detokenize", &json!({"tokens": plain["tokens"]})).ok();
    assert_eq!((&text["prompt"], &text["content"]), (&json!("Hello"), &json!("Hello")));
    let info = server.get("/tokenizer_info").ok();
    assert!(
        info["eos_token"].is_string() && info["chat_template"].as_str().unwrap().contains("message"),
        "{info}"
    );
    for bad in [json!({}), json!({"content": "a", "prompt": "a"})] {
        assert_eq!(server.post("/tokenize", &bad).error(400)["param"], "content");
    }
    assert_eq!(server.post("/detokenize", &json!({"tokens": [u32::MAX]})).error(400)["param"], "tokens");
    let many = json!({"tokens": vec![1; 1_100_000]});
    assert_eq!(server.post("/detokenize", &many).error(413)["code"], "request_too_large");
    let many = json!({"tokens": vec![1; 1_000_001]});
    assert_eq!(server.post("/detokenize", &many).error(400)["param"], "tokens");
    let words = json!({"content": " a".repeat(1_100_000), "with_pieces": true});
    assert_eq!(server.post("/tokenize", &words).error(400)["param"], "content");
    assert_eq!(server.post("/tokenize", &json!({"content": "a", "x": 1})).error(400)["param"], "x");
}

#[test]
fn the_model_and_the_servers_state_are_told() {
    let server = Running::shared();
    assert_eq!(server.get("/health").ok()["status"], "ok");
    let models = server.get("/v1/models").ok();
    assert_eq!(models["data"][0]["id"], "bundled");
    assert_eq!(models["data"][0]["meta"]["n_ctx"], 1024);
    assert_eq!(server.get("/v1/models/bundled").ok(), models["data"][0]);
    server.get("/v1/models/owner/other").error(404);
    server.get("/nothing").error(404);
    server.get("/v1/chat/completions").error(405);
    let metrics = server.get("/metrics");
    assert_eq!(metrics.status, 200);
    assert!(
        metrics.body.contains("gruff_responses_total{route=\"/health\",status=\"200\"}"),
        "{}",
        metrics.body
    );
}
