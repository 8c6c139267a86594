//! The arguments of a filter, test or method, bound to names as Python binds them.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value};

use crate::filters::failure;

/// Positional arguments, and those by keyword.
pub fn split(args: &[Value]) -> Result<(&[Value], Option<Kwargs>), Error> {
    match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => Ok((rest, Some(Kwargs::try_from(last.clone())?))),
        _ => Ok((args, None)),
    }
}

/// One value for each name; None for an argument that was not passed.
pub fn bind<const N: usize>(
    function: &str,
    names: [&str; N],
    args: &[Value],
) -> Result<[Option<Value>; N], Error> {
    let (positional, kwargs) = split(args)?;
    if positional.len() > N {
        let given = positional.len();
        return Err(failure(format!("{function} takes at most {N} arguments, got {given}")));
    }
    let mut bound = [const { None }; N];
    for (place, value) in bound.iter_mut().zip(positional) {
        *place = Some(value.clone());
    }
    for key in kwargs.iter().flat_map(Kwargs::args) {
        let place = names.iter().position(|name| *name == key).map(|at| &mut bound[at]);
        match (place, &kwargs) {
            (Some(place), Some(kwargs)) if place.is_none() => *place = Some(kwargs.peek(key)?),
            (Some(_), _) => {
                return Err(failure(format!("{function} got two values for {key}")));
            }
            _ => return Err(failure(format!("{function} has no argument named {key}"))),
        }
    }
    Ok(bound)
}

/// Positional arguments only, as many methods of Python have them.
pub fn positional<const N: usize>(
    function: &str,
    args: &[Value],
) -> Result<[Option<Value>; N], Error> {
    if args.last().is_some_and(Value::is_kwargs) {
        return Err(failure(format!("{function} takes no keyword arguments")));
    }
    bind(function, [""; N], args)
}

pub fn flag(value: Option<Value>, default: bool) -> bool {
    value.map_or(default, |value| value.is_true())
}

/// None for an argument that is missing or none.
pub fn given(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !value.is_none())
}

pub fn integer(function: &str, value: &Value) -> Result<i64, Error> {
    if value.kind() == ValueKind::Bool {
        return Ok(i64::from(value.is_true()));
    }
    if !value.is_integer() {
        let kind = value.kind();
        return Err(failure(format!("{function} needs an integer, got a value of type {kind}")));
    }
    Ok(value.as_i64().unwrap_or(i64::MAX))
}

pub fn integer_or(function: &str, value: Option<Value>, default: i64) -> Result<i64, Error> {
    value.map_or(Ok(default), |value| integer(function, &value))
}

pub fn string<'a>(function: &str, value: &'a Value) -> Result<&'a str, Error> {
    value.as_str().ok_or_else(|| {
        failure(format!("{function} needs a string, got a value of type {}", value.kind()))
    })
}

pub fn needed(function: &str, name: &str, value: Option<Value>) -> Result<Value, Error> {
    value.ok_or_else(|| failure(format!("{function} needs an argument {name}")))
}
