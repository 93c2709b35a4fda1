//! The OpenAPI document, made of the table of endpoints and of the types that read their requests.

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use crate::endpoint::Endpoint;

/// The schema of a type, by reference.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The schema of `T`.
pub(crate) fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The document.
pub(crate) fn document(endpoints: &[Endpoint]) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for endpoint in endpoints {
        let operation = operation(endpoint, &mut generator);
        let item = paths.entry(path(endpoint.path)).or_insert_with(|| json!({}));
        item[endpoint.method.as_str().to_ascii_lowercase()] = operation;
    }
    let mut schemas: Map<String, Value> = generator.take_definitions(true);
    schemas.insert("Error".to_owned(), error_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "gruff",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "OpenAI's API, Anthropic's messages, and llama-server's endpoints for tokens and templates. \
                            A field that is not listed is refused.",
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        // Where a server has keys, one of the two; else none.
        "security": [{}, {"bearer": []}, {"key": []}],
    })
}

/// A route's path as the document writes it: one name for what may have slashes too.
fn path(route: &str) -> String {
    route.replace("{*", "{")
}

fn operation(endpoint: &Endpoint, generator: &mut SchemaGenerator) -> Value {
    let mut kinds = Map::new();
    kinds.insert(endpoint.answer.to_owned(), json!({}));
    let mut operation = json!({"summary": endpoint.about});
    let names = endpoint.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| json!({"name": name.trim_start_matches('*'), "in": "path", "required": true, "schema": {"type": "string"}});
    let parameters: Vec<Value> = names.map(parameter).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(request) = endpoint.request {
        let schema = request(generator).to_value();
        let name = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
        let fields = name.and_then(|name| generator.definitions().get(name)?.get("properties"));
        if fields.is_some_and(|fields| fields.get("stream").is_some()) {
            kinds.insert("text/event-stream".to_owned(), json!({}));
        }
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    operation["responses"] = json!({
        "200": {"description": "The answer", "content": kinds},
        "default": {
            "description": "What is wrong, and what to do about it",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        },
    });
    operation
}

/// Errors in OpenAI's form; those of `/v1/messages` have `type` beside `error`, as Anthropic's.
fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["message", "type"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            },
        },
    })
}
