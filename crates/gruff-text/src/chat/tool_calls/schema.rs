//! What the schema of an argument says of how its value stands where texts have no quotation marks: as a text, or as
//! JSON. Grammars write values and readers of calls read them by this one rule.

use serde_json::Value;

use super::literals;

/// References that are followed from one schema to the next at most.
const MAX_REFERENCES: usize = 8;

/// Schemas that are looked at to tell what one says: unions may refer to each other in any number.
const MAX_SCHEMAS: usize = 1000;

/// How deep unions are followed.
const MAX_DEPTH: usize = 16;

/// Which texts a schema allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::chat) enum Texts {
    /// None at all.
    None,
    /// Some that it lists, and values that are no text.
    Mixed,
    /// Some that it lists, and nothing else.
    Listed,
    /// Any, or those of a pattern; perhaps other values too.
    Any,
}

impl Texts {
    /// Whether a value stands as a text, whatever it looks like. Anything else is JSON; a text that a list has beside
    /// other values is read without quotation marks too.
    pub(in crate::chat) fn are_bare(self) -> bool {
        self >= Texts::Listed
    }
}

/// The schema of one parameter.
pub(super) fn property<'a>(parameters: &'a Value, key: &str) -> Option<&'a Value> {
    parameters.get("properties")?.get(key).map(|property| resolved(parameters, property))
}

/// What a schema refers to, where it is a reference within the whole one.
pub(in crate::chat) fn resolved<'a>(whole: &'a Value, schema: &'a Value) -> &'a Value {
    let mut schema = schema;
    for _ in 0..MAX_REFERENCES {
        let reference = schema.get("$ref").and_then(Value::as_str);
        match reference.and_then(|reference| whole.pointer(reference.strip_prefix('#')?)) {
            Some(found) => schema = found,
            None => break,
        }
    }
    schema
}

/// The schemas of a union: any one of them.
pub(in crate::chat) fn union(schema: &Value) -> Option<&[Value]> {
    ["anyOf", "oneOf"].iter().find_map(|key| schema.get(key)?.as_array()).map(Vec::as_slice)
}

/// Which texts a schema within `whole` allows; one that says nothing at all allows any.
pub(in crate::chat) fn texts(whole: &Value, schema: &Value) -> Texts {
    Walk { whole, left: MAX_SCHEMAS }.texts(schema, 0)
}

/// The values that a schema lists.
pub(in crate::chat) fn listed<'a>(whole: &'a Value, schema: &'a Value) -> Vec<&'a Value> {
    let mut values = Vec::new();
    Walk { whole, left: MAX_SCHEMAS }.listed(schema, 0, &mut values);
    values
}

/// The value that a text is, where its schema does not say that it is a text: JSON, or nearly; a text where it cannot be
/// anything else.
pub(super) fn typed(text: &str, whole: &Value, schema: Option<&Value>) -> Value {
    let trimmed = text.trim();
    let allows = |kind| schema.is_some_and(|schema| Walk { whole, left: MAX_SCHEMAS }.names(schema, kind, 0));
    match trimmed.to_ascii_lowercase().as_str() {
        "true" if allows("boolean") => return Value::from(true),
        "false" if allows("boolean") => return Value::from(false),
        _ => {}
    }
    // Some templates write lists and dictionaries as Python does.
    let value = serde_json::from_str(trimmed).ok().or_else(|| literals::whole(trimmed));
    let Some(value) = value else { return Value::from(text) };
    let kind = match &value {
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        _ => return value,
    };
    // A text that is listed without quotation marks may look like something else.
    let values = schema.map(|schema| listed(whole, schema)).unwrap_or_default();
    let other = values.contains(&&value) || allows(kind) || (kind == "number" && allows("integer"));
    if !other && values.iter().any(|value| value.as_str() == Some(trimmed)) {
        return Value::from(trimmed);
    }
    value
}

/// A walk through schemas that refer to each other.
struct Walk<'a> {
    whole: &'a Value,
    /// Schemas that may still be looked at.
    left: usize,
}

impl<'a> Walk<'a> {
    /// What a schema refers to; `None` where enough has been looked at.
    fn enter(&mut self, schema: &'a Value, depth: usize) -> Option<&'a Value> {
        self.left = self.left.checked_sub(1)?;
        (depth <= MAX_DEPTH).then(|| resolved(self.whole, schema))
    }

    fn texts(&mut self, schema: &'a Value, depth: usize) -> Texts {
        let Some(schema) = self.enter(schema, depth) else { return Texts::None };
        let mut allowed = own_texts(schema);
        if let Some(either) = union(schema) {
            let each: Vec<Texts> = either.iter().map(|schema| self.texts(schema, depth + 1)).collect();
            let of_union = match each.iter().max() {
                // Beside other values.
                Some(Texts::Listed) if each.contains(&Texts::None) || each.contains(&Texts::Mixed) => {
                    Texts::Mixed
                }
                most => most.copied().unwrap_or(Texts::None),
            };
            allowed = allowed.min(of_union);
        }
        for schema in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            allowed = allowed.min(self.texts(schema, depth + 1));
        }
        allowed
    }

    fn listed(&mut self, schema: &'a Value, depth: usize, values: &mut Vec<&'a Value>) {
        let Some(schema) = self.enter(schema, depth) else { return };
        if let Some(only) = schema.get("const") {
            values.push(only);
        } else if let Some(each) = schema.get("enum").and_then(Value::as_array) {
            values.extend(each);
        }
        let all = schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice);
        for schema in union(schema).into_iter().chain(all).flatten() {
            self.listed(schema, depth + 1, values);
        }
    }

    /// Whether a schema names a type, in so many words.
    fn names(&mut self, schema: &'a Value, wanted: &str, depth: usize) -> bool {
        let Some(schema) = self.enter(schema, depth) else { return false };
        let all = schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice);
        names(schema, wanted)
            || union(schema)
                .into_iter()
                .chain(all)
                .flatten()
                .any(|schema| self.names(schema, wanted, depth + 1))
    }
}

/// Whether the type of a schema is one, or one of several.
fn names(schema: &Value, wanted: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == wanted,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind.as_str() == Some(wanted)),
        _ => false,
    }
}

/// Which texts a schema allows by what it does not leave to others.
fn own_texts(schema: &Value) -> Texts {
    let values = match (schema.get("const"), schema.get("enum").and_then(Value::as_array)) {
        (Some(only), _) => std::slice::from_ref(only),
        (None, Some(values)) => values,
        (None, None) => {
            let any = match schema.get("type") {
                Some(Value::String(_) | Value::Array(_)) => names(schema, "string"),
                _ => schema.get("properties").is_none() && schema.get("items").is_none(),
            };
            return if any { Texts::Any } else { Texts::None };
        }
    };
    match values.iter().filter(|value| value.is_string()).count() {
        0 => Texts::None,
        count if count == values.len() => Texts::Listed,
        _ => Texts::Mixed,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_a_text_where_its_schema_allows_texts_that_it_does_not_list_beside_others() {
        let whole = json!({"$defs": {
            "place": {"type": "object", "properties": {"x": {"type": "integer"}}},
            "unit": {"type": "string", "enum": ["km", "m"]},
            "self": {"anyOf": [{"$ref": "#/$defs/self"}, {"$ref": "#/$defs/self"}]},
        }});
        for (schema, expected) in [
            (json!({}), Texts::Any),
            (json!({"type": "string"}), Texts::Any),
            (json!({"type": ["string", "null"]}), Texts::Any),
            (json!({"anyOf": [{"type": "string"}, {"type": "object"}]}), Texts::Any),
            (json!({"type": "string", "enum": ["a", "b"]}), Texts::Listed),
            (json!({"const": "a"}), Texts::Listed),
            (json!({"const": 3}), Texts::None),
            (json!({"allOf": [{"$ref": "#/$defs/unit"}]}), Texts::Listed),
            (json!({"type": "string", "oneOf": [{"const": "a"}, {"const": "b"}]}), Texts::Listed),
            (json!({"type": ["string", "null"], "enum": ["a", null]}), Texts::Mixed),
            (json!({"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "null"}]}), Texts::Mixed),
            (json!({"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]}), Texts::None),
            (json!({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), Texts::None),
            (json!({"enum": [1, 2]}), Texts::None),
            (json!({"items": {"type": "string"}}), Texts::None),
            (json!({"$ref": "#/$defs/self"}), Texts::None),
        ] {
            assert_eq!(texts(&whole, &schema), expected, "{schema}");
        }
        assert!(listed(&whole, &json!({"$ref": "#/$defs/self"})).is_empty());
    }

    #[test]
    fn a_text_of_a_list_needs_no_quotation_marks() {
        let read = |text: &str, schema: Value| typed(text, &Value::Null, Some(&schema));
        let some = || json!({"type": ["string", "null"], "enum": ["km", "1", "true", null]});
        for text in ["km", "\"km\"", "\nkm\n"] {
            assert_eq!(read(text.trim(), some()), json!("km"), "{text}");
        }
        assert_eq!((read("1", some()), read("\"1\"", some())), (json!("1"), json!("1")));
        assert_eq!((read("true", some()), read("null", some())), (json!("true"), Value::Null));
        let both = || json!({"enum": ["1", 1, null]});
        assert_eq!((read("1", both()), read("\"1\"", both())), (json!(1), json!("1")));
        let number = json!({"anyOf": [{"enum": ["1"]}, {"type": "integer"}]});
        assert_eq!(read("1", number), json!(1));
        assert_eq!(read("True", json!({"anyOf": [{"type": "boolean"}, {"type": "null"}]})), json!(true));
    }
}
