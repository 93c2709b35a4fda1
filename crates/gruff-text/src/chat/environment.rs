//! The environment that transformers renders chat templates in: `trim_blocks`, `lstrip_blocks`,
//! loop controls, an immutable sandbox, `tojson` without HTML escapes, `raise_exception`.

use std::fmt::Write;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value};

use super::python::arguments::{bind, split};
use super::python::filters::{self, Filter};
use super::python::tests::Test;
use super::python::value::{Dict, Range, check_storable, items, type_error, type_name};
use super::python::{self, Arguments, compare, methods, operators, text};

/// The operators that [`super::lower`] turns into calls.
const OPERATORS: [(&str, Filter); 12] = [
    ("__add", operators::add),
    ("__multiply", operators::multiply),
    ("__modulo", operators::modulo),
    ("__negate", operators::negate),
    ("__concat", operators::concat),
    ("__compare", compare::chain),
    ("__item", operators::item),
    ("__slice", operators::slice),
    ("__iterate", operators::iterate),
    ("__store", operators::store),
    ("__store_attribute", operators::store_attribute),
    ("__dict", operators::dict_literal),
];

const FUNCTIONS: [(&str, Filter); 4] =
    [("raise_exception", raise_exception), ("namespace", namespace), ("dict", dict), ("range", range)];

/// An environment with everything but the template and the clock.
pub(super) fn new() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, _, value| Ok(text::write_str(out, value)?));
    environment.set_unknown_method_callback(methods::call);
    // Only with it do errors name the expression that is undefined.
    environment.set_debug(true);
    environment.remove_global("debug");
    filters::install(&mut environment);
    python::tests::install(&mut environment);
    for (name, function) in OPERATORS.into_iter().chain(FUNCTIONS) {
        environment.add_global(name, function_value(function));
    }
    Ok(environment)
}

/// A function of any arguments as a template value.
pub(super) fn function_value<F>(function: F) -> Value
where
    F: Fn(&mut State, Arguments<'_>) -> Result<Value, Error> + Send + Sync + 'static,
{
    Value::from_function(move |state: &mut State, args: Rest<ValueOrKwargs>| {
        function(state, &args.into_values())
    })
}

pub(super) fn add_filter(environment: &mut Environment<'static>, name: &'static str, filter: Filter) {
    environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        filter(state, &args.into_values())
    });
}

pub(super) fn add_test(environment: &mut Environment<'static>, name: &'static str, test: Test) {
    environment
        .add_test(name, move |state: &mut State, args: Rest<ValueOrKwargs>| test(state, &args.into_values()));
}

/// The message with which a template refused its input.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub(super) String);

fn raise_exception(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let [message] = bind("raise_exception", args, ["message"], 1)?;
    let message = text::str(&message.unwrap_or_default())?;
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refusal(message)))
}

fn namespace(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let pairs = pairs("namespace", state, args)?;
    for (name, value) in &pairs {
        if name.as_str().is_none_or(|name| name.starts_with('_')) {
            return Err(type_error(format!(
                "namespace: {name} is no name for an attribute; it must not begin with '_'"
            )));
        }
        check_storable(state, value, true)?;
    }
    let dict = Value::from_object(Dict::new(pairs)?);
    minijinja::functions::namespace(Some(ValueOrKwargs::from(dict)))
}

fn dict(state: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let dict = Dict::new(pairs("dict", state, args)?)?;
    state.consume_fuel(dict.fuel())?;
    Ok(Value::from_object(dict))
}

/// What `dict()` is called with: a mapping or pairs, and keyword arguments.
fn pairs(function: &str, state: &State, args: Arguments<'_>) -> Result<Vec<(Value, Value)>, Error> {
    let (positional, named) = split(args)?;
    let mut pairs = Vec::new();
    match positional {
        [] => {}
        [source] => match source.downcast_object_ref::<Dict>() {
            Some(dict) => pairs.extend_from_slice(dict.entries()),
            None => {
                for item in items(state, source)? {
                    match items(state, &item)?.as_slice() {
                        [key, value] => pairs.push((key.clone(), value.clone())),
                        other => {
                            return Err(type_error(format!(
                                "{function}: an item of length {} is no pair of key and value",
                                other.len()
                            )));
                        }
                    }
                }
            }
        },
        _ => return Err(type_error(format!("{function} takes at most one positional argument"))),
    }
    state.consume_fuel(pairs.len() as u64)?;
    pairs.extend(named.into_iter().map(|(name, value)| (Value::from(name), value)));
    Ok(pairs)
}

fn range(_: &mut State, args: Arguments<'_>) -> Result<Value, Error> {
    let number = |value: &Value| {
        operators::integer(value).and_then(|number| i64::try_from(number).ok()).ok_or_else(|| {
            type_error(format!("'{}' object cannot be interpreted as an integer", type_name(value)))
        })
    };
    let (start, stop, step) = match args {
        [stop] => (0, number(stop)?, 1),
        [start, stop] => (number(start)?, number(stop)?, 1),
        [start, stop, step] => (number(start)?, number(stop)?, number(step)?),
        _ => return Err(type_error("range takes one to three integers")),
    };
    Ok(Value::from_object(Range::new(start, stop, step)?))
}

/// The function behind `{% generation %}`: its body, between marks where they are wanted.
pub(super) fn generation(mark: Option<String>) -> Value {
    function_value(move |state: &mut State, args: Arguments<'_>| {
        let [caller] = bind("generation", args, ["caller"], 1)?;
        let body = caller.unwrap_or_default().call(state, &[])?;
        let mut out = String::new();
        let mark = mark.as_deref().unwrap_or_default();
        write!(out, "{mark}{}{mark}", body.as_str().unwrap_or_default())?;
        Ok(Value::from(out))
    })
}
