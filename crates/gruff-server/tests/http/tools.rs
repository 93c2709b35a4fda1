use std::time::Instant;

use gruff::Constraint;
use gruff::floors::text::chat::{Demand, OutputFormat, ToolCallFormat, outline};
use serde_json::{Value, json};

use crate::client::{Running, model, tokenizer};

const CHAT: &str = "/v1/chat/completions";

fn tools() -> Value {
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}});
    json!([
        tool(
            "weather",
            json!({"type": "object", "required": ["city", "days"], "properties": {
            "city": {"type": "string", "maxLength": 10}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}})
        ),
        tool("now", json!({"type": "object", "properties": {}})),
        tool(
            "pick",
            json!({"type": "object", "required": ["colour"], "properties": {"colour": {"enum": ["red", "green"]}}})
        ),
    ])
}

fn request(fields: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "What is the weather in Paris?"}],
                             "tools": tools(), "temperature": 1.2, "max_tokens": 400});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

fn check(call: &Value) {
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    let fields = arguments.as_object().unwrap().len();
    match call["function"]["name"].as_str().unwrap() {
        "weather" => {
            assert!(arguments["city"].as_str().unwrap().chars().count() <= 10, "{call}");
            assert!((1..=9).contains(&arguments["days"].as_u64().unwrap()) && fields == 2, "{call}");
        }
        "now" => assert_eq!(arguments, json!({})),
        "pick" => assert!(["red", "green"].contains(&arguments["colour"].as_str().unwrap()) && fields == 1),
        name => panic!("{name}"),
    }
}

#[test]
fn a_model_is_made_to_call_tools() {
    let server = Running::shared();
    for seed in 0..3 {
        for choice in [
            json!("required"),
            json!({"type": "function", "function": {"name": "weather"}}),
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                {"type": "function", "function": {"name": "pick"}}, {"type": "function", "function": {"name": "now"}}]}}),
        ] {
            let fields = json!({"tool_choice": choice, "parallel_tool_calls": false, "seed": seed});
            let answer = server.post(CHAT, &request(fields)).ok();
            let choice_of = &answer["choices"][0];
            assert_eq!(choice_of["finish_reason"], "tool_calls", "{answer}");
            let calls = choice_of["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 1, "{answer}");
            check(&calls[0]);
            let name = calls[0]["function"]["name"].as_str().unwrap();
            match choice["type"].as_str() {
                Some("function") => assert_eq!(name, "weather"),
                Some("allowed_tools") => assert_ne!(name, "weather"),
                _ => {}
            }
        }
    }
}

#[test]
fn calls_that_are_asked_for_are_streamed_and_cut_by_length() {
    let server = Running::shared();
    let choice = json!({"type": "function", "function": {"name": "weather"}});
    let fields = json!({"tool_choice": choice, "parallel_tool_calls": false, "seed": 5, "temperature": 0});
    let whole = server.post(CHAT, &request(fields.clone())).ok();
    let call = &whole["choices"][0]["message"]["tool_calls"][0]["function"];
    let mut streamed = request(fields.clone());
    streamed["stream"] = json!(true);
    let (events, done) = server.post(CHAT, &streamed).events();
    assert!(done);
    let parts =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array()).flatten();
    let text = |field: &str| -> String {
        parts.clone().filter_map(|part| part["function"][field].as_str()).collect()
    };
    assert_eq!(
        (Value::from(text("name")), Value::from(text("arguments"))),
        (call["name"].clone(), call["arguments"].clone())
    );
    let mut cut = request(fields);
    cut["max_tokens"] = json!(3);
    assert_eq!(server.post(CHAT, &cut).ok()["choices"][0]["finish_reason"], "length");
}

#[test]
fn strict_functions_and_documents_among_tools() {
    let server = Running::shared();
    let mut strict = tools();
    strict[0]["function"]["strict"] = json!(true);
    for seed in 0..2 {
        let answer = server.post(CHAT, &request(json!({"tools": strict, "seed": seed}))).ok();
        for call in answer["choices"][0]["message"]["tool_calls"].as_array().into_iter().flatten() {
            check(call);
        }
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"], "additionalProperties": false}}});
        let answer = server.post(CHAT, &request(json!({"response_format": format, "seed": seed}))).ok();
        let message = &answer["choices"][0]["message"];
        match message["tool_calls"].as_array() {
            Some(calls) => calls.iter().for_each(check),
            None => {
                let value: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
                assert!(value["sunny"].is_boolean(), "{value}");
            }
        }
    }
}

#[test]
fn schemas_that_cannot_be_followed_are_refused_by_their_place() {
    let server = Running::shared();
    let mut bad = tools();
    bad[2]["function"]["parameters"]["properties"]["colour"] = json!({"type": "nothing"});
    let error = server.post(CHAT, &request(json!({"tools": bad, "tool_choice": "required"}))).error(400);
    assert_eq!(error["param"], "tools[2]", "{error}");
    let error = server.post(CHAT, &request(json!({"tools": [], "tool_choice": "required"}))).error(400);
    assert_eq!(error["param"], "tool_choice");
    let unknown = json!({"type": "function", "function": {"name": "other"}});
    assert_eq!(
        server.post(CHAT, &request(json!({"tool_choice": unknown}))).error(400)["param"],
        "tool_choice"
    );
}

#[test]
fn the_other_apis_ask_for_calls_too() {
    let server = Running::shared();
    let flat: Vec<Value> = tools()
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| {
            let mut flat = tool["function"].clone();
            flat["type"] = json!("function");
            flat
        })
        .collect();
    let answer = server
        .post(
            "/v1/responses",
            &json!({"input": "Weather?", "tools": flat, "tool_choice": "required",
        "parallel_tool_calls": false, "temperature": 1}),
        )
        .ok();
    let call =
        answer["output"].as_array().unwrap().iter().find(|item| item["type"] == "function_call").unwrap();
    check(&json!({"function": call}));
    let tools: Vec<Value> =
        flat.iter().map(|tool| json!({"name": tool["name"], "input_schema": tool["parameters"]})).collect();
    for (choice, name) in [
        (json!({"type": "any", "disable_parallel_tool_use": true}), None),
        (json!({"type": "tool", "name": "pick", "disable_parallel_tool_use": true}), Some("pick")),
    ] {
        let request = json!({"messages": [{"role": "user", "content": "Go."}], "max_tokens": 300, "temperature": 1,
                             "tools": tools, "tool_choice": choice});
        let answer = server.post("/v1/messages", &request).ok();
        assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
        let block =
            answer["content"].as_array().unwrap().iter().find(|block| block["type"] == "tool_use").unwrap();
        check(&json!({"function": {"name": block["name"], "arguments": block["input"].to_string()}}));
        assert!(name.is_none_or(|name| block["name"] == name));
    }
    let error = server
        .post(
            "/v1/messages",
            &json!({"messages": [{"role": "user", "content": "Go."}], "max_tokens": 9,
        "tools": tools, "tool_choice": {"type": "tool", "name": "other"}}),
        )
        .error(400);
    assert!(error["message"].as_str().unwrap().contains("other"), "{error}");
}

#[test]
fn hundreds_of_tools_and_large_schemas_compile() {
    let (model, tokenizer) = (model(), tokenizer());
    let note = "What it is about: {at some length}, for a model to read, and not for a grammar.";
    let tool = |index: usize| {
        let field = |field: usize| (format!("field_{field}"), json!({"type": "string", "description": note}));
        let properties: serde_json::Map<String, Value> = (0..8).map(field).collect();
        json!({"type": "function", "function": {"name": format!("tool_{index}"), "description": note, "parameters": {
            "type": "object", "properties": properties, "required": ["field_1"]}}})
    };
    let many: Vec<Value> = (0..300).map(tool).collect();
    let field = |field: usize| {
        let inner = json!({"type": "object", "description": note.repeat(3), "required": ["a"], "properties": {
            "a": {"type": "string"}, "b": {"type": "array", "items": {"enum": ["one", "two", field]}}}});
        (format!("property_{field}"), inner)
    };
    let properties: serde_json::Map<String, Value> = (0..300).map(field).collect();
    let large = json!({"type": "object", "properties": properties, "required": ["property_7"]});
    assert!(large.to_string().len() > 100_000);
    let large = vec![json!({"type": "function", "function": {"name": "large", "parameters": large}})];
    for format in [ToolCallFormat::Hermes, ToolCallFormat::Xml] {
        let format = OutputFormat { reasoning: None, tool_calls: Some(format) };
        for tools in [&many, &large] {
            let start = Instant::now();
            let demand = Demand::Calls { tools, many: true };
            let grammar = format.grammar(tokenizer.tokenizer(), "", demand).unwrap();
            if let Err(error) = model.constraint(&Constraint::Lark(grammar)) {
                panic!("{format:?} {} tools: {error}", tools.len());
            }
            eprintln!("{format:?} {} tools: {:?}", tools.len(), start.elapsed());
        }
    }
}

/// A tool with so many arguments that are objects, no two of which are alike.
fn large_tool(count: usize, strict: bool) -> Value {
    let object = |field: usize| {
        let inner = json!({"type": "object", "required": ["a"], "properties": {
            "a": {"type": "string"}, "b": {"type": "array", "items": {"enum": ["one", "two", field]}},
            format!("c{field}"): {"type": "integer"}}});
        (format!("property_{field}"), inner)
    };
    let properties: serde_json::Map<String, Value> = (0..count).map(object).collect();
    let parameters = json!({"type": "object", "properties": properties, "required": ["property_7"]});
    json!({"type": "function", "function": {"name": "large", "strict": strict, "parameters": parameters}})
}

#[test]
fn outlines_of_schemas_compile_that_are_too_large() {
    let (model, tokenizer) = (model(), tokenizer());
    let tools: Vec<Value> = vec![large_tool(400, false)];
    let many: Vec<Value> = (0..300)
        .map(|index| {
            let mut tool = large_tool(8, false);
            tool["function"]["name"] = json!(format!("tool_{index}"));
            tool["function"]["parameters"]["properties"][format!("own_{index}")] =
                json!({"type": "object", "properties": {format!("own_{index}"): {"type": "array"}}});
            tool
        })
        .collect();
    assert!(Value::from(many.clone()).to_string().len() > 300_000);
    for format in [
        ToolCallFormat::Hermes,
        ToolCallFormat::Mistral,
        ToolCallFormat::Xml,
        ToolCallFormat::ArgumentTags,
        ToolCallFormat::MiniMax,
        ToolCallFormat::Dsml,
        ToolCallFormat::Gemma,
        ToolCallFormat::Lfm,
    ] {
        let format = OutputFormat { reasoning: None, tool_calls: Some(format) };
        for tools in [&tools, &many] {
            let outlines: Vec<Value> = tools.iter().map(outline).collect();
            for demand in [
                Demand::Calls { tools: &outlines, many: true },
                Demand::MayCall { tools: &outlines, many: true },
            ] {
                let grammar = format.grammar(tokenizer.tokenizer(), "", demand).unwrap();
                if let Err(error) = model.constraint(&Constraint::Lark(grammar)) {
                    panic!("{format:?} {} tools: {error}", tools.len());
                }
            }
        }
    }
}

#[test]
fn schemas_too_large_for_a_grammar_are_followed_in_outline_unless_they_are_strict() {
    let server = Running::shared();
    let ask_with = |tool: Value, choice: &str| {
        let fields = json!({"tools": [tool], "tool_choice": choice});
        server.post(CHAT, &request(fields)).error(400)
    };
    let ask = |strict: bool, choice: &str| ask_with(large_tool(450, strict), choice);
    // What is left to object to is that the bundled model has no room for so long a prompt.
    for (strict, choice) in [(false, "required"), (false, "auto")] {
        assert_eq!(ask(strict, choice)["code"], "context_length_exceeded", "{strict} {choice}");
    }
    for choice in ["required", "auto"] {
        let error = ask(true, choice);
        assert_eq!(error["code"], "schema_too_large", "{error}");
    }
    // So it is where one schema alone is too large.
    let error = ask_with(large_tool(3000, true), "required");
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("schema_too_large"), &json!("tools[0]")),
        "{error}"
    );
    // A schema that is wrong is not followed in outline.
    let wrong = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "x": {"type": "number", "multipleOf": 0.123_456_789_012}}}}});
    let error = ask_with(wrong, "required");
    assert_eq!((&error["code"], &error["param"]), (&Value::Null, &json!("tools[0]")), "{error}");
}
