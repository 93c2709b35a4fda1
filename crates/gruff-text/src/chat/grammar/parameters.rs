//! Schemas of tools, taken apart for formats that write each argument by itself.

use serde_json::{Map, Value, json};

use super::GrammarError;
use crate::chat::tool_calls::schema::{Texts, listed, resolved, texts, union};

/// A tool as grammars need it.
pub(super) struct Function {
    pub(super) name: String,
    /// Its parameters' schema: an object that takes no arguments it does not name, unless it says so.
    pub(super) parameters: Value,
    /// Its place in the request.
    place: usize,
}

/// One argument.
pub(super) struct Parameter<'a> {
    pub(super) name: &'a str,
    pub(super) required: bool,
    pub(super) schema: Value,
}

/// What a value may be, where text stands without quotes.
pub(super) enum Kind {
    /// A text that a regular expression matches; `None` for any.
    Text(Option<String>),
    /// One of some texts.
    OneOf(Vec<String>),
    /// Anything else, as JSON.
    Json,
}

/// Keywords that say of an object what taking its properties one by one would leave out.
const WHOLE: [&str; 12] = [
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "minProperties",
    "propertyNames",
    "patternProperties",
    "unevaluatedProperties",
];

impl Function {
    /// Reads tools as they are given to a template. Names must be such that no format misreads them.
    pub(super) fn all(tools: &[Value]) -> Result<Vec<Function>, GrammarError> {
        let function = |(place, tool): (usize, &Value)| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
            let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
            if name.is_empty() || !name.chars().all(plain) {
                return Err(GrammarError::tool(
                    place,
                    "a model that is made to call tools needs names of letters, digits, `_`, `-`, `.` and `:` alone",
                ));
            }
            let parameters = match function.get("parameters") {
                None | Some(Value::Null) => json!({"type": "object"}),
                Some(Value::Object(fields)) => Value::Object(fields.clone()),
                Some(_) => return Err(GrammarError::tool(place, "`parameters` is not a JSON schema")),
            };
            Ok(Function { name: name.to_owned(), parameters: closed(parameters), place })
        };
        tools.iter().enumerate().map(function).collect()
    }

    /// The arguments one by one, for a format that writes them so.
    ///
    /// # Errors
    /// Where the schema says more of them together than which there are and which are required.
    pub(super) fn each(&self) -> Result<Vec<Parameter<'_>>, GrammarError> {
        if let Some(keyword) = WHOLE.into_iter().find(|keyword| self.parameters.get(keyword).is_some()) {
            return Err(GrammarError::tool(
                self.place,
                format_args!(
                    "this model writes arguments one by one, so `{keyword}` at the top of `parameters` cannot be followed"
                ),
            ));
        }
        let required = self.parameters.get("required").and_then(Value::as_array);
        let is_required = |name: &str| required.into_iter().flatten().any(|field| field == name);
        let Some(properties) = self.parameters.get("properties").and_then(Value::as_object) else {
            return Ok(Vec::new());
        };
        let mut each = Vec::with_capacity(properties.len());
        for (name, schema) in properties {
            if name.is_empty() || name.contains(['"', '<', '>', '\n', '=', ':', ',', '(', '{']) {
                return Err(GrammarError::tool(
                    self.place,
                    format_args!("the parameter {name:?} has a name that this model's format cannot write"),
                ));
            }
            each.push(Parameter { name, required: is_required(name), schema: self.with_definitions(schema) });
        }
        Ok(each)
    }

    /// A part of the schema that still finds what it refers to.
    fn with_definitions(&self, schema: &Value) -> Value {
        let mut schema = match schema {
            Value::Object(fields) => fields.clone(),
            other => return other.clone(),
        };
        for key in ["$defs", "definitions"] {
            if let (Some(definitions), None) = (self.parameters.get(key), schema.get(key)) {
                schema.insert(key.to_owned(), definitions.clone());
            }
        }
        Value::Object(schema)
    }
}

/// All types but that of texts.
const OTHER_TYPES: [&str; 5] = ["object", "array", "number", "boolean", "null"];

/// Values of an enumeration that an outline keeps.
const OUTLINED_VALUES: usize = 32;

/// A tool, as given to a template, with no more of its schema than an outline: which arguments there are, which of them
/// are required, and the type of each. Grammars of outlines are small however large the schemas are.
pub fn outline(tool: &Value) -> Value {
    let mut outlined = tool.clone();
    let function = match outlined.get_mut("function") {
        Some(function) => function,
        None => &mut outlined,
    };
    if let Some(parameters) = function.get_mut("parameters").filter(|parameters| parameters.is_object()) {
        *parameters = outline_of_object(parameters);
    }
    outlined
}

fn outline_of_object(parameters: &Value) -> Value {
    // What these say cannot be left out in part.
    if WHOLE.iter().any(|keyword| parameters.get(keyword).is_some()) {
        return json!({"type": "object", "additionalProperties": true});
    }
    let mut fields = Map::new();
    for key in ["type", "required"] {
        fields.extend(parameters.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    if let Some(properties) = parameters.get("properties").and_then(Value::as_object) {
        let outlined =
            properties.iter().map(|(name, schema)| (name.clone(), outline_of_value(parameters, schema)));
        fields.insert("properties".to_owned(), Value::Object(outlined.collect()));
    }
    match parameters.get("additionalProperties") {
        None => {}
        Some(Value::Bool(open)) => drop(fields.insert("additionalProperties".to_owned(), Value::from(*open))),
        Some(_) => drop(fields.insert("additionalProperties".to_owned(), Value::from(true))),
    }
    Value::Object(fields)
}

/// The type of a value, and its values where there are few.
fn outline_of_value(whole: &Value, schema: &Value) -> Value {
    let schema = resolved(whole, schema);
    let is_plain = |value: &Value| !value.is_array() && !value.is_object();
    if let Some(only) = schema.get("const").filter(|only| is_plain(only)) {
        return json!({"const": only});
    }
    let few = |values: &&Vec<Value>| values.len() <= OUTLINED_VALUES && values.iter().all(is_plain);
    if let Some(values) = schema.get("enum").and_then(Value::as_array).filter(few) {
        return json!({"enum": values});
    }
    if texts(whole, schema).are_bare() {
        let kind = schema.get("type").filter(|_| union(schema).is_none());
        return json!({"type": kind.cloned().unwrap_or_else(|| json!("string"))});
    }
    // What is not read as a text must not become one: without a type it would be.
    let kinds: Vec<&str> = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => OTHER_TYPES.to_vec(),
    };
    let mut kinds: Vec<&str> = kinds.into_iter().filter(|kind| *kind != "string").collect();
    if kinds.is_empty() {
        kinds = OTHER_TYPES.to_vec();
    }
    let kind = if let [kind] = *kinds { json!(kind) } else { json!(kinds) };
    let strings: Vec<&Value> = listed(whole, schema).into_iter().filter(|value| value.is_string()).collect();
    match strings.is_empty() {
        true => json!({"type": kind}),
        false => json!({"anyOf": [{"type": kind}, {"enum": strings}]}),
    }
}

/// An object that names its properties has no others, unless its schema allows them in so many words: what a model
/// makes up is of no use to a function.
fn closed(mut parameters: Value) -> Value {
    if let Value::Object(fields) = &mut parameters {
        if !fields.contains_key("type") && !WHOLE.iter().any(|keyword| fields.contains_key(*keyword)) {
            fields.insert("type".to_owned(), Value::from("object"));
        }
        let whole = WHOLE.iter().any(|keyword| fields.contains_key(*keyword));
        if !whole && !fields.contains_key("additionalProperties") {
            fields.entry("properties").or_insert_with(|| Value::Object(Map::new()));
            fields.insert("additionalProperties".to_owned(), Value::from(false));
        }
    }
    parameters
}

impl Parameter<'_> {
    /// How a value is written.
    pub(super) fn kind(&self, function: &Function) -> Kind {
        let (whole, schema) = (&function.parameters, resolved(&function.parameters, &self.schema));
        match texts(whole, schema) {
            Texts::None | Texts::Mixed => Kind::Json,
            Texts::Listed => {
                let strings = listed(whole, schema).into_iter().filter_map(Value::as_str);
                Kind::OneOf(strings.map(str::to_owned).collect())
            }
            Texts::Any => Kind::Text(text_of(whole, schema).and_then(pattern)),
        }
    }
}

/// Schemas of a union among which that of its texts is looked for.
const MOST_BRANCHES: usize = 16;

/// The schema that says which texts a value may be: of a union the only one of it that allows any.
fn text_of<'a>(whole: &'a Value, schema: &'a Value) -> Option<&'a Value> {
    let Some(either) = union(schema) else { return Some(schema) };
    if either.len() > MOST_BRANCHES {
        return None;
    }
    let mut some = either.iter().filter(|schema| texts(whole, schema) != Texts::None);
    match (some.next(), some.next()) {
        (Some(only), None) => Some(resolved(whole, only)).filter(|only| union(only).is_none()),
        _ => None,
    }
}

/// The regular expression of a text: its pattern, or its length.
fn pattern(schema: &Value) -> Option<String> {
    let length = |name: &str| schema.get(name).and_then(Value::as_u64);
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
        let (begin, pattern) =
            pattern.strip_prefix('^').map_or(("(?s:.*)", pattern), |pattern| ("", pattern));
        let ended = pattern.strip_suffix('$').filter(|pattern| !pattern.ends_with('\\'));
        let (pattern, end) = ended.map_or((pattern, "(?s:.*)"), |pattern| (pattern, ""));
        return Some(format!("{begin}({pattern}){end}"));
    }
    match (length("minLength"), length("maxLength")) {
        (None, None) => None,
        (least, most) => {
            let most = most.map(|most| most.to_string()).unwrap_or_default();
            Some(format!("(?s:.{{{},{most}}})", least.unwrap_or(0)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outlines_keep_names_and_types() {
        let tool = |parameters: Value| json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
        let many: Vec<usize> = (0..100).collect();
        let codes: Vec<String> = (0..100).map(|code| code.to_string()).collect();
        let code_or_null: Vec<Value> = codes.iter().map(|code| json!(code)).chain([Value::Null]).collect();
        let whole = json!({"type": "object", "description": "d", "required": ["a"], "additionalProperties": {"type": "string"},
            "$defs": {"x": {"type": "array", "items": {"type": "integer"}}}, "properties": {
            "a": {"type": "string", "pattern": "^a+$", "maxLength": 9}, "b": {"$ref": "#/$defs/x"}, "c": {"enum": ["u", null]},
            "d": {"enum": many, "type": "integer"}, "e": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "f": {"anyOf": [{"type": "object"}, {"type": "null"}]}, "g": {"const": 3}, "h": {"type": ["object", "null"], "properties": {}},
            "i": {"properties": {"x": {}}}, "k": {"type": ["string", "null"], "enum": code_or_null}, "l": {"enum": many},
            "m": {"type": ["string", "null"], "maxLength": 3}, "n": {"anyOf": [{"enum": ["u"]}, {"$ref": "#/$defs/x"}]}}});
        let outlined = json!({"type": "object", "required": ["a"], "additionalProperties": true, "properties": {
            "a": {"type": "string"}, "b": {"type": "array"}, "c": {"enum": ["u", null]}, "d": {"type": "integer"},
            "e": {"type": "string"}, "f": {"type": OTHER_TYPES}, "g": {"const": 3},
            "h": {"type": ["object", "null"]}, "i": {"type": OTHER_TYPES},
            "k": {"anyOf": [{"type": "null"}, {"enum": codes}]}, "l": {"type": OTHER_TYPES}, "m": {"type": ["string", "null"]},
            "n": {"anyOf": [{"type": OTHER_TYPES}, {"enum": ["u"]}]}}});
        assert_eq!(outline(&tool(whole)), tool(outlined));
        let either = json!({"anyOf": [{"type": "object"}], "type": "object"});
        assert_eq!(outline(&tool(either)), tool(json!({"type": "object", "additionalProperties": true})));
        for same in
            [json!({"type": "function", "function": {"name": "f"}}), json!({"name": "f", "parameters": {}})]
        {
            assert_eq!(outline(&same), same);
        }
    }
}
