//! The Python values that minijinja has no type for: dicts whose methods shadow their keys,
//! dict views, generators and `range` objects. JSON becomes these on the way in.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::text;

/// Methods that a Python dict has: `d.items` is the method even when the dict has that key.
const DICT_METHODS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// How deep containers may be nested. JSON stops at 128.
const MAX_DEPTH: usize = 200;

/// An immutable dict that keeps the order of its keys.
pub(crate) struct Dict {
    entries: Vec<(Value, Value)>,
    index: HashMap<Value, usize>,
    extent: Extent,
}

/// How far a value reaches: what a walk over it costs.
#[derive(Clone, Copy)]
struct Extent {
    depth: usize,
    nodes: u64,
}

impl Dict {
    /// Later entries replace earlier ones of the same key, which keeps its place.
    pub(crate) fn new(pairs: impl IntoIterator<Item = (Value, Value)>) -> Result<Dict, Error> {
        let mut entries: Vec<(Value, Value)> = Vec::new();
        let mut index: HashMap<Value, usize> = HashMap::new();
        for (key, value) in pairs {
            check_key(&key)?;
            match index.get(&key) {
                Some(&at) => {
                    if let Some(entry) = entries.get_mut(at) {
                        entry.1 = value;
                    }
                }
                None => {
                    index.insert(key.clone(), entries.len());
                    entries.push((key, value));
                }
            }
        }
        let mut extent = Extent { depth: 1, nodes: 1 };
        for (_, value) in &entries {
            extent.include(measure(value, 1)?);
        }
        Ok(Dict { entries, index, extent })
    }

    pub(crate) fn get(&self, key: &Value) -> Option<&Value> {
        self.entries.get(*self.index.get(key)?).map(|entry| &entry.1)
    }

    /// What a walk over the dict costs.
    pub(crate) fn fuel(&self) -> u64 {
        self.extent.nodes / 4
    }

    pub(crate) fn contains(&self, key: &Value) -> bool {
        self.index.contains_key(key)
    }

    pub(crate) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }
}

impl fmt::Debug for Dict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.entries.iter().map(|(key, value)| (key, value))).finish()
    }
}

impl Object for Dict {
    /// `d[key]`: the entry, and where there is none, the method of that name, as in Jinja.
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(key).cloned().or_else(|| method(key.as_str()?, "dict"))
    }

    /// `d.key`: the method of that name before the entry, as in Jinja.
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        method(key, "dict").or_else(|| self.get(&Value::from(key)).cloned())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.entries.iter().map(|(key, _)| key.clone()).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write_repr(f, &Value::from_dyn_object(self.clone()))
    }
}

/// A method named without being called, such as `d.items`.
pub(crate) struct Method {
    name: String,
    owner: &'static str,
}

fn method(name: &str, owner: &'static str) -> Option<Value> {
    DICT_METHODS.contains(&name).then(|| Value::from_object(Method { name: name.to_owned(), owner }))
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of {} object>", self.name, self.owner)
    }
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// What `d.keys()`, `d.values()` and `d.items()` give: it has a length, but no positions.
pub(crate) struct View {
    pub(crate) name: &'static str,
    pub(crate) items: Vec<Value>,
}

impl View {
    pub(crate) fn value(name: &'static str, items: Vec<Value>) -> Value {
        Value::from_object(View { name, items })
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:?})", self.name, self.items)
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }
}

/// What filters such as `map` and `select` give: items that can be read once, and no length.
pub(crate) struct Generator {
    items: Mutex<Vec<Value>>,
}

impl Generator {
    pub(crate) fn value(items: Vec<Value>) -> Value {
        Value::from_object(Generator { items: Mutex::new(items) })
    }

    fn take(&self) -> Vec<Value> {
        match self.items.lock() {
            Ok(mut items) => std::mem::take(&mut items),
            Err(_) => Vec::new(),
        }
    }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.take())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// `range(start, stop, step)`.
pub(crate) struct Range {
    start: i64,
    stop: i64,
    step: i64,
    len: usize,
}

impl Range {
    /// Refuses more than 100,000 elements, the limit of Jinja's sandbox.
    pub(crate) fn new(start: i64, stop: i64, step: i64) -> Result<Range, Error> {
        const MAX_LEN: u64 = 100_000;
        let span = match step {
            0 => return Err(type_error("range() arg 3 must not be zero")),
            1.. => (i128::from(stop) - i128::from(start)).max(0),
            _ => (i128::from(start) - i128::from(stop)).max(0),
        };
        let step_size = i128::from(step).unsigned_abs();
        let len = u64::try_from(span.unsigned_abs().div_ceil(step_size)).unwrap_or(u64::MAX);
        if len > MAX_LEN {
            return Err(limit_error(format!("a range of more than {MAX_LEN} elements")));
        }
        Ok(Range { start, stop, step, len: len as usize })
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            1 => write!(f, "range({}, {})", self.start, self.stop),
            step => write!(f, "range({}, {}, {step})", self.start, self.stop),
        }
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = key.as_usize().filter(|&at| at < self.len)?;
        Some(Value::from(self.start + self.step * at as i64))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// JSON as template values: objects become [`Dict`], arrays lists.
pub(crate) fn from_json(json: &serde_json::Value) -> Result<Value, Error> {
    Ok(match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (_, Some(value)) => Value::from(value),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(value) => Value::from(value.as_str()),
        serde_json::Value::Array(items) => {
            Value::from(items.iter().map(from_json).collect::<Result<Vec<_>, _>>()?)
        }
        serde_json::Value::Object(map) => Value::from_object(from_json_object(map)?),
    })
}

/// [`from_json`] for an object.
pub(crate) fn from_json_object(map: &serde_json::Map<String, serde_json::Value>) -> Result<Dict, Error> {
    let pairs = map
        .iter()
        .map(|(key, value)| Ok((Value::from(key.as_str()), from_json(value)?)))
        .collect::<Result<Vec<_>, Error>>()?;
    Dict::new(pairs)
}

/// The items of anything iterable; the error is Python's for what is not. Charges for each.
pub(crate) fn items(state: &State, value: &Value) -> Result<Vec<Value>, Error> {
    if !is_iterable(value) {
        return Err(type_error(format!("'{}' object is not iterable", type_name(value))));
    }
    if let Some(len) = value.len() {
        state.consume_fuel(len as u64 / 2)?;
    }
    value.try_iter()?.checked().collect()
}

/// True for what a Python `for` accepts.
pub(crate) fn is_iterable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number => false,
        ValueKind::Plain => {
            value.downcast_object_ref::<View>().is_some()
                || value.downcast_object_ref::<Generator>().is_some()
        }
        _ => !is_opaque(value),
    }
}

/// Checks a value before it is kept in a variable, where a loop could make it grow without
/// bound: it must be nested less than [`MAX_DEPTH`] deep, its size is charged, and namespaces and
/// loops must not be inside containers, where they could form a cycle.
pub(crate) fn check_storable(state: &State, value: &Value, inside: bool) -> Result<(), Error> {
    let extent = if is_opaque(value) && !inside { Extent { depth: 0, nodes: 1 } } else { measure(value, 0)? };
    state.consume_fuel(extent.nodes / 4)
}

impl Extent {
    fn include(&mut self, inner: Extent) {
        self.depth = self.depth.max(inner.depth.saturating_add(1));
        self.nodes = self.nodes.saturating_add(inner.nodes);
    }
}

/// How many nodes a stored value may have; 16 bytes of text count as one more.
const MAX_NODES: u64 = 1 << 22;

fn measure(value: &Value, level: usize) -> Result<Extent, Error> {
    let mut extent = Extent { depth: 0, nodes: 1 };
    measure_into(value, level, &mut extent)?;
    Ok(extent)
}

fn measure_into(value: &Value, level: usize, total: &mut Extent) -> Result<(), Error> {
    if level > MAX_DEPTH {
        return Err(limit_error(format!("containers nested more than {MAX_DEPTH} deep")));
    }
    if total.nodes > MAX_NODES {
        return Err(limit_error(format!("a value of more than {MAX_NODES} parts")));
    }
    let mut each = |items: &[Value]| -> Result<(), Error> {
        let mut deepest = 0;
        for item in items {
            let mut inner = Extent { depth: 0, nodes: total.nodes.saturating_add(1) };
            measure_into(item, level + 1, &mut inner)?;
            total.nodes = inner.nodes;
            deepest = deepest.max(inner.depth);
        }
        total.depth = total.depth.max(deepest + 1);
        Ok(())
    };
    if let Some(text) = value.as_str() {
        total.nodes = total.nodes.saturating_add(text.len() as u64 / 16);
    } else if let Some(dict) = value.downcast_object_ref::<Dict>() {
        total.depth = total.depth.max(dict.extent.depth);
        total.nodes = total.nodes.saturating_add(dict.extent.nodes);
        if level + dict.extent.depth > MAX_DEPTH {
            return measure_into(&Value::UNDEFINED, MAX_DEPTH + 1, total);
        }
    } else if let Some(list) = value.downcast_object_ref::<Vec<Value>>() {
        each(list)?;
    } else if let Some(tuple) = value.downcast_object_ref::<Tuple>() {
        each(tuple)?;
    } else if let Some(view) = value.downcast_object_ref::<View>() {
        each(&view.items)?;
    } else if let Some(generator) = value.downcast_object_ref::<Generator>() {
        let items = match generator.items.lock() {
            Ok(items) => items.clone(),
            Err(_) => Vec::new(),
        };
        each(&items)?;
    } else if is_opaque(value) {
        return Err(type_error(format!("a {} cannot be kept inside another value", type_name(value))));
    }
    Ok(())
}

/// Namespaces, loops and macros: objects of the template engine.
pub(crate) fn is_opaque(value: &Value) -> bool {
    let Some(object) = value.as_object() else {
        return false;
    };
    let ours = value.downcast_object_ref::<Dict>().is_some()
        || value.downcast_object_ref::<Vec<Value>>().is_some()
        || value.is_tuple()
        || value.downcast_object_ref::<View>().is_some()
        || value.downcast_object_ref::<Generator>().is_some()
        || value.downcast_object_ref::<Range>().is_some()
        || value.downcast_object_ref::<Method>().is_some();
    !ours && !value.is_kwargs() && object.type_name().contains("::") && !is_plain_map(value)
}

/// A map that minijinja built itself.
fn is_plain_map(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().contains("IndexMap<"))
}

/// Strings and numbers and tuples of them can be keys.
pub(crate) fn check_key(key: &Value) -> Result<(), Error> {
    let hashable = match key.downcast_object_ref::<Tuple>() {
        Some(tuple) => tuple.iter().all(|part| part.as_object().is_none()),
        None => key.as_object().is_none(),
    };
    if hashable { Ok(()) } else { Err(type_error(format!("unhashable type: '{}'", type_name(key)))) }
}

/// Python's name for the type of a value.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Bytes => "bytes",
        _ if value.downcast_object_ref::<Dict>().is_some() => "dict",
        _ if value.downcast_object_ref::<Vec<Value>>().is_some() => "list",
        _ if value.is_tuple() => "tuple",
        _ if value.downcast_object_ref::<Range>().is_some() => "range",
        _ if value.downcast_object_ref::<Generator>().is_some() => "generator",
        _ => match value.downcast_object_ref::<View>() {
            Some(view) => view.name,
            None => match value.as_object().map(|object| object.type_name()) {
                Some(name) if name.ends_with("Namespace") => "Namespace",
                Some(name) if name.ends_with("Loop") => "LoopContext",
                Some(name) if name.ends_with("Macro") => "Macro",
                Some(name) if name.ends_with("Method") => "builtin_function_or_method",
                _ => "object",
            },
        },
    }
}

/// What Python reports as a TypeError (and other mistakes in a template's logic).
pub(crate) fn type_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// One of the limits that keep a hostile template from hanging or filling memory.
pub(crate) fn limit_error(limit: impl Into<String>) -> Error {
    let limit = limit.into();
    Error::new(ErrorKind::InvalidOperation, limit.clone()).with_source(LimitReached(limit))
}

/// The cause behind an error that reports a limit.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LimitReached(pub(crate) String);
