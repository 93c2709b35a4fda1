//! Jinja's tests (`value is string`) with Python's semantics.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::operators::{float, integer};
use super::value::{Dict, Range, is_iterable, type_error, type_name};
use super::{Arguments, compare, strings, text, undefined};

/// A test: its input first, then its arguments.
pub(crate) type Test = fn(&State, Arguments<'_>) -> Result<bool, Error>;

const TESTS: [(&str, Test); 29] = [
    ("boolean", |_, args| Ok(kind(args) == ValueKind::Bool)),
    ("callable", |_, args| Ok(kind(args) == ValueKind::Plain)),
    ("divisibleby", |_, args| Ok(remainder(args, divisor(args)?)? == 0.0)),
    ("even", |_, args| Ok(remainder(args, 2)? == 0.0)),
    ("odd", |_, args| Ok(remainder(args, 2)? == 1.0)),
    ("float", |_, args| Ok(kind(args) == ValueKind::Number && !value(args).is_integer())),
    ("integer", |_, args| Ok(kind(args) == ValueKind::Number && value(args).is_integer())),
    ("number", |_, args| Ok(matches!(kind(args), ValueKind::Number | ValueKind::Bool))),
    ("iterable", |_, args| Ok(is_iterable(value(args)))),
    ("mapping", |_, args| Ok(value(args).downcast_object_ref::<Dict>().is_some())),
    ("sequence", |_, args| Ok(is_sequence(value(args)))),
    ("lower", |_, args| Ok(strings::is_lower(&text::str(value(args))?))),
    ("upper", |_, args| Ok(strings::is_upper(&text::str(value(args))?))),
    ("sameas", |_, args| Ok(kind(args) == other(args).kind() && value(args) == other(args))),
    ("in", |state, args| compare::contains(state, other(args), value(args))),
    ("eq", |state, args| compare::equal(state, value(args), other(args))),
    ("equalto", |state, args| compare::equal(state, value(args), other(args))),
    ("==", |state, args| compare::equal(state, value(args), other(args))),
    ("ne", |state, args| Ok(!compare::equal(state, value(args), other(args))?)),
    ("!=", |state, args| Ok(!compare::equal(state, value(args), other(args))?)),
    ("lt", |state, args| ordered(state, "<", args)),
    ("lessthan", |state, args| ordered(state, "<", args)),
    ("<", |state, args| ordered(state, "<", args)),
    ("le", |state, args| ordered(state, "<=", args)),
    ("<=", |state, args| ordered(state, "<=", args)),
    ("gt", |state, args| ordered(state, ">", args)),
    ("greaterthan", |state, args| ordered(state, ">", args)),
    (">", |state, args| ordered(state, ">", args)),
    ("ge", |state, args| ordered(state, ">=", args)),
];

/// Tests that Jinja does not have.
const MINIJINJA_ONLY: [&str; 4] = ["startingwith", "endingwith", "int", "safe"];

/// Replaces minijinja's tests by these.
pub(crate) fn install(environment: &mut Environment<'static>) {
    for name in MINIJINJA_ONLY {
        environment.remove_test(name);
    }
    for (name, test) in TESTS {
        super::super::environment::add_test(environment, name, test);
    }
    super::super::environment::add_test(environment, ">=", |state, args| ordered(state, ">=", args));
}

fn value<'a>(args: Arguments<'a>) -> &'a Value {
    args.first().unwrap_or(&Value::UNDEFINED)
}

fn other<'a>(args: Arguments<'a>) -> &'a Value {
    args.get(1).unwrap_or(&Value::UNDEFINED)
}

fn kind(args: Arguments<'_>) -> ValueKind {
    value(args).kind()
}

/// What has a length and positions to Python: text, lists, tuples, ranges, and dicts too.
fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined => true,
        _ => {
            value.downcast_object_ref::<Vec<Value>>().is_some()
                || value.downcast_object_ref::<Dict>().is_some()
                || value.downcast_object_ref::<Tuple>().is_some()
                || value.downcast_object_ref::<Range>().is_some()
        }
    }
}

fn divisor(args: Arguments<'_>) -> Result<i128, Error> {
    integer(other(args))
        .filter(|divisor| *divisor != 0)
        .ok_or_else(|| type_error("divisibleby needs an integer other than 0"))
}

fn remainder(args: Arguments<'_>, divisor: i128) -> Result<f64, Error> {
    let value = value(args);
    if let Some(number) = integer(value).and_then(|number| number.checked_rem_euclid(divisor)) {
        return Ok(number as f64);
    }
    match float(value) {
        Some(number) => Ok(number.rem_euclid(divisor as f64)),
        None if value.is_undefined() => Err(undefined(value)),
        None => {
            Err(type_error(format!("unsupported operand type(s) for %: '{}' and 'int'", type_name(value))))
        }
    }
}

fn ordered(state: &State, operator: &str, args: Arguments<'_>) -> Result<bool, Error> {
    let order = compare::order(state, operator, value(args), other(args))?;
    Ok(order.is_some_and(|order| match operator {
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        _ => order.is_ge(),
    }))
}

#[cfg(test)]
mod unit {
    use super::super::value::Generator;
    use super::*;

    #[test]
    fn sequences_are_what_python_says() {
        for (value, expected) in [
            (Value::from("text"), true),
            (Value::from(vec![Value::from(1)]), true),
            (Value::from(1), false),
            (Value::from(()), false),
            (Generator::value(vec![]), false),
        ] {
            assert_eq!(is_sequence(&value), expected, "{value:?}");
        }
    }
}
