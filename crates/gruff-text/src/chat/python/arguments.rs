//! Arguments bound to parameters the way Python does.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};

use super::value::type_error;

/// Binds positional and keyword arguments to `parameters`, the first `required` of which must be
/// given. Each that is not given is `None`.
pub(crate) fn bind<const N: usize>(
    function: &str,
    args: &[Value],
    parameters: [&str; N],
    required: usize,
) -> Result<[Option<Value>; N], Error> {
    let (positional, keywords) = split(args)?;
    let mut bound = [const { None }; N];
    if positional.len() > N {
        return Err(Error::new(
            ErrorKind::TooManyArguments,
            format!("{function}() takes at most {N} arguments, {} given", positional.len()),
        ));
    }
    for (slot, value) in bound.iter_mut().zip(positional) {
        *slot = Some(value.clone());
    }
    for (name, value) in keywords {
        let slot =
            parameters.iter().position(|parameter| *parameter == name).and_then(|at| bound.get_mut(at));
        match slot {
            Some(slot @ None) => *slot = Some(value),
            Some(Some(_)) => {
                return Err(type_error(format!("{function}() got multiple values for argument '{name}'")));
            }
            None => {
                return Err(type_error(format!("{function}() got an unexpected keyword argument '{name}'")));
            }
        }
    }
    match bound.iter().take(required).position(Option::is_none) {
        Some(at) => Err(Error::new(
            ErrorKind::MissingArgument,
            format!("{function}() needs the argument '{}'", parameters.get(at).unwrap_or(&"?")),
        )),
        None => Ok(bound),
    }
}

/// Keyword arguments in the order they were given.
pub(crate) type Keywords = Vec<(String, Value)>;

/// Separates the keyword arguments, which minijinja passes as a last value.
pub(crate) fn split(args: &[Value]) -> Result<(&[Value], Keywords), Error> {
    let Some((last, rest)) = args.split_last().filter(|(last, _)| last.is_kwargs()) else {
        return Ok((args, Vec::new()));
    };
    let kwargs = Kwargs::try_from(last.clone())?;
    let names: Vec<String> = kwargs.args().map(str::to_owned).collect();
    let mut keywords = Vec::with_capacity(names.len());
    for name in names {
        let value = kwargs.get::<Value>(&name)?;
        keywords.push((name, value));
    }
    Ok((rest, keywords))
}
