use serde_json::{Map, Value, json};

use crate::client::Running;

fn document() -> Value {
    Running::shared().get("/openapi.json").ok()
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("{value} is no object"))
}

/// The schema that a reference leads to.
fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(path) => {
            let pointer = path.strip_prefix('#').unwrap();
            document.pointer(pointer).unwrap_or_else(|| panic!("{path} leads nowhere"))
        }
        None => schema,
    }
}

/// Calls `look` with every reference in a value.
fn references(value: &Value, look: &mut impl FnMut(&Value)) {
    match value {
        Value::Object(fields) => {
            if fields.contains_key("$ref") {
                look(value);
            }
            fields.values().for_each(|field| references(field, look));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, look)),
        _ => {}
    }
}

#[test]
fn every_operation_of_the_document_is_served() {
    let server = Running::shared();
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    references(&document, &mut |reference| {
        resolve(&document, reference);
    });
    for path in ["/v1/chat/completions", "/v1/models/{id}", "/v1/messages", "/tokenize", "/openapi.json"] {
        assert!(document["paths"].get(path).is_some(), "{path}");
    }
    for (path, item) in object(&document["paths"]) {
        let address = path.replace("{id}", "bundled");
        for (method, operation) in object(item) {
            assert!(!operation["summary"].as_str().unwrap().is_empty());
            let kind = ("Content-Type", "application/json");
            match method.as_str() {
                "get" => assert_eq!(server.get(&address).status, 200, "{path}"),
                "post" => {
                    let response = server.send("POST", &address, &[kind], "[]");
                    assert_eq!(response.status, 400, "{path}: {}", response.body);
                }
                other => panic!("{path} has {other}"),
            }
        }
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
            if object(item).contains_key(&method.to_ascii_lowercase()) {
                continue;
            }
            let response = server.send(method, &address, &[], "");
            assert_eq!(response.status, 405, "{method} {path}");
            let allowed = response.header("allow").unwrap_or_default();
            for method in object(item).keys() {
                assert!(allowed.contains(&method.to_ascii_uppercase()), "{path} allows {allowed:?}");
            }
        }
    }
}

/// The document has the fields that the server reads, all of them and no others.
#[test]
fn fields_of_the_document_are_those_that_are_read() {
    let server = Running::shared();
    let document = document();
    for (path, item) in object(&document["paths"]) {
        let Some(body) = item.get("post").map(|post| &post["requestBody"]) else { continue };
        let schema = resolve(&document, &body["content"]["application/json"]["schema"]);
        assert_eq!(schema["additionalProperties"], json!(false), "{path}");
        let refused = server.post(path, &json!({"surely_no_field": 1}));
        assert!(refused.body.contains("`surely_no_field` is not a field"), "{path}: {}", refused.body);
        let fields = object(&schema["properties"]);
        assert!(fields.contains_key("model"), "{path}");
        for field in fields.keys() {
            // A value that no field takes, so that nothing is answered.
            let response = server.post(path, &json!({ field: {"": [[]]} }));
            let unknown = format!("`{field}` is not a field");
            assert!(!response.body.contains(&unknown), "{path}: {}", response.body);
        }
        server.post(path, &json!({})).error(400);
    }
}
