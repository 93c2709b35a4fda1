//! `tool_choice`: which tools an answer calls.

use serde_json::Value;

use crate::api_error::ApiError;
use crate::form::Calls;

/// Which tools the model is shown, and which calls it makes.
pub(super) struct Chosen {
    pub(super) tools: Vec<Value>,
    pub(super) calls: Calls,
}

/// Reads `tool_choice` of chat completions or of responses. `tools` are functions as in chat completions.
pub(super) fn read(choice: Option<&Value>, tools: Vec<Value>) -> Result<Chosen, ApiError> {
    let mut chosen = choose(choice, tools)?;
    hide_strict(&mut chosen.tools);
    Ok(chosen)
}

/// Leaves `strict` out of what the model is shown: it is said to the server.
pub(crate) fn hide_strict(tools: &mut [Value]) {
    let functions = tools.iter_mut().filter_map(|tool| tool.get_mut("function")?.as_object_mut());
    functions.for_each(|function| drop(function.remove("strict")));
}

fn choose(choice: Option<&Value>, tools: Vec<Value>) -> Result<Chosen, ApiError> {
    let is = |kind: &str| choice.and_then(|choice| choice.get("type")).and_then(Value::as_str) == Some(kind);
    match choice {
        None | Some(Value::Null) => Ok(may(tools)),
        Some(Value::String(mode)) => match mode.as_str() {
            "auto" => Ok(may(tools)),
            "none" => Ok(Chosen { tools: Vec::new(), calls: Calls::Free }),
            "required" => must(tools.clone(), tools),
            _ => Err(ApiError::field(
                "tool_choice",
                "`tool_choice` is none, auto, required, or names a function",
            )),
        },
        Some(choice) if is("function") => {
            let own = pick(&tools, std::slice::from_ref(choice))?;
            must(own, tools)
        }
        Some(choice) if is("allowed_tools") => {
            let within = choice.get("allowed_tools").unwrap_or(choice);
            let allowed = within.get("tools").and_then(Value::as_array).map(Vec::as_slice);
            let allowed = pick(&tools, allowed.unwrap_or_default())?;
            match within.get("mode").and_then(Value::as_str) {
                Some("required") => must(allowed, tools),
                Some("auto") => Ok(may(allowed)),
                _ => Err(ApiError::field("tool_choice", "the `mode` of `allowed_tools` is auto or required")),
            }
        }
        Some(_) => Err(ApiError::unsupported(
            "tool_choice",
            "`tool_choice` is none, auto, required, a function, or allowed_tools that are functions",
        )),
    }
}

/// Calls of these as the model likes; where one of them is strict, all calls follow their schemas.
fn may(tools: Vec<Value>) -> Chosen {
    let calls = free(&tools);
    Chosen { tools, calls }
}

/// Which calls of these there may be where nothing is said of them.
pub(crate) fn free(tools: &[Value]) -> Calls {
    let strict = |tool: &Value| tool.pointer("/function/strict") == Some(&Value::from(true));
    match tools.iter().any(strict) {
        false => Calls::Free,
        true => Calls::Only(tools.to_vec()),
    }
}

fn must(callable: Vec<Value>, tools: Vec<Value>) -> Result<Chosen, ApiError> {
    if callable.is_empty() {
        return Err(ApiError::field(
            "tool_choice",
            "`tool_choice` asks for a call, and there are no `tools` to call",
        ));
    }
    Ok(Chosen { tools, calls: Calls::Required(callable) })
}

/// The tools that are named, by `function.name` or by `name`.
fn pick(tools: &[Value], named: &[Value]) -> Result<Vec<Value>, ApiError> {
    let name = |value: &Value| {
        let name = value.get("function").unwrap_or(value).get("name");
        name.and_then(Value::as_str).map(str::to_owned)
    };
    let find = |wanted: &Value| {
        let wanted = name(wanted).ok_or_else(|| ApiError::field("tool_choice", "it names no function"))?;
        let found = tools.iter().find(|tool| name(tool).as_ref() == Some(&wanted));
        found.cloned().ok_or_else(|| {
            ApiError::field(
                "tool_choice",
                format!("`tool_choice` names {wanted:?}, which is not one of the `tools`"),
            )
        })
    };
    named.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_ways_to_write_a_choice_are_read() {
        let tools: Vec<Value> =
            ["a", "b", "c"].map(|name| json!({"type": "function", "function": {"name": name}})).into();
        let read = |choice: Value| read(Some(&choice), tools.clone());
        let names = |tools: &[Value]| -> String {
            tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect()
        };
        let must = |choice: Value| match read(choice).unwrap() {
            Chosen { tools, calls: Calls::Required(own) } => (names(&tools), names(&own)),
            Chosen { calls, .. } => panic!("{calls:?}"),
        };
        let both = |own: &str| ("abc".to_owned(), own.to_owned());
        assert_eq!(must(json!("required")), both("abc"));
        assert_eq!(must(json!({"type": "function", "function": {"name": "b"}})), both("b"));
        assert_eq!(must(json!({"type": "function", "name": "c"})), both("c"));
        let allowed =
            json!([{"type": "function", "name": "c"}, {"type": "function", "function": {"name": "a"}}]);
        let inside =
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": allowed}});
        assert_eq!(must(inside), both("ca"));
        let chosen = read(json!({"type": "allowed_tools", "mode": "auto", "tools": allowed})).unwrap();
        assert_eq!((names(&chosen.tools), chosen.calls), ("ca".to_owned(), Calls::Free));
        assert_eq!(names(&read(json!("none")).unwrap().tools), "");
        for bad in
            [json!("some"), json!({"type": "function", "name": "d"}), json!({"type": "custom"}), json!(3)]
        {
            assert_eq!(read(bad).err().unwrap().param.as_deref(), Some("tool_choice"));
        }
        assert!(super::read(Some(&json!("required")), Vec::new()).is_err());
    }
}
