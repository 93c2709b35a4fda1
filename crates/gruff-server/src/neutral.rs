//! Fields that other servers have, at the values that ask for what this server does anyway.
//!
//! Routers write such fields into every request that passes them. At another value, and elsewhere, they are refused
//! as any unknown field is.

use serde_json::{Map, Value, json};

/// A field of SGLang's or vLLM's API, and its value.
fn neutral() -> [(&'static str, Value); 9] {
    [
        ("continue_final_message", json!(false)),
        // An answer ends at the model's end token,
        ("ignore_eos", json!(false)),
        // without it and without the string that stopped it,
        ("no_stop_trim", json!(false)),
        ("skip_special_tokens", json!(true)),
        // in text alone,
        ("return_hidden_states", json!(false)),
        // with reasoning apart, as it comes.
        ("include_reasoning", json!(true)),
        ("separate_reasoning", json!(true)),
        ("stream_reasoning", json!(true)),
        // Requests are served in order of arrival.
        ("priority", json!(0)),
    ]
}

/// The request without such fields; none where it has none.
pub(crate) fn without(body: &[u8]) -> Option<Value> {
    let mut fields: Map<String, Value> = serde_json::from_slice(body).ok()?;
    let before = fields.len();
    for (name, value) in neutral() {
        if fields.get(name) == Some(&value) {
            fields.remove(name);
        }
    }
    (fields.len() < before).then_some(Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_nothing_is_left_out() {
        let left = |body: Value| without(body.to_string().as_bytes());
        let routed = json!({"n": 1, "ignore_eos": false, "stream_reasoning": true, "priority": 0});
        assert_eq!(left(routed), Some(json!({"n": 1})));
        for other in
            [json!({"ignore_eos": true}), json!({"priority": 1}), json!({"n": 1}), json!([]), json!("a")]
        {
            assert_eq!(left(other), None);
        }
        assert_eq!(without(b"{"), None);
    }
}
