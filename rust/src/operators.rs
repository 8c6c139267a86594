//! Operators that read or build more than one word, as filters that charge the work budget and do
//! what Python does.

use std::cmp::Ordering;

use indexmap::IndexMap;
use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::budget::{charge, charge_deep, charge_shallow, collect, to_text};
use crate::filters::failure;
use crate::order::{charged_order, same};
use crate::{formats, methods, objects, twins};

// No template can name these: a filter's name in a template is an identifier.
pub const ADD: &str = "+";
pub const MUL: &str = "*";
pub const CONCAT: &str = "~";
pub const EQ: &str = "==";
pub const NE: &str = "!=";
pub const IN: &str = "?in";
pub const LIST: &str = "[]";
pub const TUPLE: &str = "()";
pub const MAP: &str = "{}";
pub const SLICE: &str = "[:]";
pub const CHANGED: &str = ".changed";
pub const CYCLE: &str = ".cycle";
pub const REM: &str = "%";
pub const LT: &str = "<";
pub const LE: &str = "<=";
pub const GT: &str = ">";
pub const GE: &str = ">=";
pub const ITEM: &str = ".[]";
pub const LOOPED: &str = "?for";

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    let message = format!("{operator} does not work on {} and {}", a.kind(), b.kind());
    Error::new(ErrorKind::InvalidOperation, message)
}

fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn integers(a: &Value, b: &Value) -> Option<(i128, i128)> {
    let whole = |v: &Value| v.is_integer() || v.kind() == ValueKind::Bool;
    if !whole(a) || !whole(b) {
        return None;
    }
    Some((i128::try_from(a.clone()).ok()?, i128::try_from(b.clone()).ok()?))
}

fn floats(a: &Value, b: &Value) -> Option<(f64, f64)> {
    let float = |v: &Value| match v.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(v.is_true()))),
        ValueKind::Number => f64::try_from(v.clone()).ok(),
        _ => None,
    };
    Some((float(a)?, float(b)?))
}

fn too_large() -> Error {
    failure("a number is too large")
}

fn small(value: i128) -> Value {
    i64::try_from(value).map_or_else(|_| Value::from(value), Value::from)
}

pub fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        charge(x.len() + y.len())?;
        return Ok(Value::from([x, y].concat()));
    }
    if is_sequence(a) && is_sequence(b) && a.is_tuple() == b.is_tuple() {
        charge_shallow(a)?;
        charge_shallow(b)?;
        let items = a.try_iter()?.chain(b.try_iter()?);
        return Ok(if a.is_tuple() && b.is_tuple() {
            Value::from(Tuple::from(items.collect::<Vec<Value>>()))
        } else {
            Value::from(items.collect::<Vec<Value>>())
        });
    }
    if let Some((x, y)) = integers(a, b) {
        return x.checked_add(y).map(small).ok_or_else(too_large);
    }
    floats(a, b).map(|(x, y)| Value::from(x + y)).ok_or_else(|| unsupported("+", a, b))
}

fn repeated(value: &Value, times: &Value) -> Option<Result<Value, Error>> {
    let times = usize::try_from(times.as_i64()?.max(0)).ok()?;
    if let Some(text) = value.as_str() {
        return Some(
            charge(text.len().saturating_mul(times)).map(|()| Value::from(text.repeat(times))),
        );
    }
    if !is_sequence(value) {
        return None;
    }
    let repeat = || {
        let items: Vec<Value> = value.try_iter()?.collect();
        charge(items.len().max(1).saturating_mul(times).saturating_mul(32))?;
        let items: Vec<Value> = (0..times).flat_map(|_| items.iter().cloned()).collect();
        Ok(if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) })
    };
    Some(repeat())
}

fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(result) = repeated(a, b).or_else(|| repeated(b, a)) {
        return result;
    }
    if let Some((x, y)) = integers(a, b) {
        return x.checked_mul(y).map(small).ok_or_else(too_large);
    }
    floats(a, b).map(|(x, y)| Value::from(x * y)).ok_or_else(|| unsupported("*", a, b))
}

/// Python's remainder, which has the sign of the divisor, and its formatting of strings.
fn rem(a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(format) = a.as_str() {
        return formats::percent(format, b).map(Value::from);
    }
    let zero = || failure("the remainder of a division by 0");
    if let Some((x, y)) = integers(a, b) {
        let remainder = x.checked_rem(y).ok_or_else(zero)?;
        let adjusted = remainder != 0 && (remainder < 0) != (y < 0);
        return Ok(small(if adjusted { remainder + y } else { remainder }));
    }
    let (x, y) = floats(a, b).ok_or_else(|| unsupported("%", a, b))?;
    if y == 0.0 {
        return Err(zero());
    }
    let remainder = x % y;
    let adjusted = remainder != 0.0 && (remainder < 0.0) != (y < 0.0);
    Ok(Value::from(if adjusted { remainder + y } else { remainder.copysign(y) }))
}

fn concat(a: &Value, b: &Value) -> Result<Value, Error> {
    Ok(Value::from(to_text(a)? + &to_text(b)?))
}

pub fn equal(a: &Value, b: &Value) -> Result<bool, Error> {
    // Only values of the same kind are walked, and the walk ends with the shorter.
    if a.kind() == b.kind() && (a.as_str().is_some() || a.len() == b.len()) {
        charge_deep(a)?;
        charge_deep(b)?;
    }
    same(a, b)
}

fn not_equal(a: &Value, b: &Value) -> Result<bool, Error> {
    equal(a, b).map(|same| !same)
}

pub fn is_in(value: &Value, container: &Value) -> Result<bool, Error> {
    if let Some(text) = container.as_str() {
        let Some(wanted) = value.as_str() else {
            let kind = value.kind();
            return Err(failure(format!("only a string can be in a string, got {kind}")));
        };
        charge(text.len())?;
        return Ok(twins::seen(text).contains(twins::seen(wanted).as_ref()));
    }
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map => {
            let key =
                value.as_str().map_or_else(|| value.clone(), |key| Value::from(&*twins::seen(key)));
            let found = container.get_item(value)?.is_undefined()
                && container.get_item(&key)?.is_undefined();
            Ok(!found)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            for item in container.try_iter()? {
                charge(32)?;
                if equal(&item, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Err(unsupported("in", value, container)),
    }
}

// Nested lists can grow values without growing any text: [x, x] nested eight times has 256 leaves.
// Each literal is charged for everything that it holds.
fn list(items: Rest<Value>) -> Result<Value, Error> {
    items.iter().try_for_each(charge_deep)?;
    Ok(Value::from(items.0))
}

fn tuple(items: Rest<Value>) -> Result<Value, Error> {
    items.iter().try_for_each(charge_deep)?;
    Ok(Value::from(Tuple::from(items.0)))
}

fn map(items: Rest<Value>) -> Result<Value, Error> {
    items.iter().try_for_each(charge_deep)?;
    let mut made = IndexMap::with_capacity(items.len() / 2);
    for pair in items.chunks_exact(2) {
        made.insert(pair[0].clone(), pair[1].clone());
    }
    Ok(Value::from_object(made))
}

/// The indices of `[start:stop:step]` in a list of `length` items, as in Python's slice.indices.
fn slice_indices(
    (start, stop, step): (Option<i64>, Option<i64>, i64),
    length: usize,
) -> impl Iterator<Item = usize> {
    let length = length as i64;
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |index: i64| {
        let counted = if index < 0 { index.saturating_add(length) } else { index };
        counted.clamp(lowest, highest)
    };
    let (first, end) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let (first, end) = (start.map_or(first, place), stop.map_or(end, place));
    std::iter::successors(Some(first), move |at| at.checked_add(step))
        .take_while(move |at| if step > 0 { *at < end } else { *at > end })
        .map(|at| at as usize)
}

fn slice(value: &Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let bound = |value: Value| -> Result<Option<i64>, Error> {
        if value.is_none() {
            Ok(None)
        } else {
            i64::try_from(value).map(Some)
        }
    };
    let by = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if by.2 == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "a slice's step must not be 0"));
    }
    if let Some(text) = value.as_str() {
        charge(text.len())?;
        let characters: Vec<char> = text.chars().collect();
        let taken = slice_indices(by, characters.len()).map(|at| characters[at]);
        return Ok(Value::from(taken.collect::<String>()));
    }
    if value.is_none() || value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if !is_sequence(value) {
        let message = format!("a value of type {} cannot be sliced", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        charge(1)?;
        items.push(item);
    }
    let taken = collect(slice_indices(by, items.len()).map(|at| items[at].clone()))?;
    Ok(if value.is_tuple() { Value::from(Tuple::from(taken)) } else { Value::from(taken) })
}

/// loop.changed keeps its arguments, so it is charged for them.
fn changed(state: &mut State, value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    args.iter().try_for_each(charge_deep)?;
    value.call_method(state, "changed", &args)
}

fn cycle(state: &mut State, value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    if args.is_empty() {
        return Err(failure("cycle needs at least one item"));
    }
    value.call_method(state, "cycle", &args)
}

/// `value[key]`. Jinja2 looks for items first, then for methods of the name.
fn item_or_method(value: &Value, key: &Value) -> Result<Value, Error> {
    let mut found = value.get_item(key)?;
    let Some(name) = key.as_str().filter(|_| found.is_undefined()) else { return Ok(found) };
    if twins::has_twins(name) {
        found = value.get_item(&Value::from(twins::seen(name).as_ref()))?;
    }
    if let Some(name) = methods::known(name).filter(|_| found.is_undefined()) {
        found = objects::method(value, name)?.unwrap_or(found);
    }
    Ok(found)
}

pub fn register(environment: &mut Environment<'static>) {
    for dotted in methods::DOTTED {
        // `value.name`, where the method comes first.
        let name = &dotted[1..];
        environment.add_filter(*dotted, move |value: &Value| match objects::method(value, name)? {
            Some(method) => Ok(method),
            None => value.get_attr(name),
        });
    }
    for name in PRESERVING {
        environment.add_filter(name, move |a: &Value, b: &Value| {
            let holds = compared(name, a, b)?;
            Ok::<_, Error>(Value::from(vec![Value::from(holds), b.clone()]))
        });
    }
    environment.add_filter(LOOPED, looped);
    environment.add_filter(ITEM, item_or_method);
    environment.add_filter(REM, rem);
    environment.add_filter(LT, |a: &Value, b: &Value| charged_order(a, b).map(Ordering::is_lt));
    environment.add_filter(LE, |a: &Value, b: &Value| charged_order(a, b).map(Ordering::is_le));
    environment.add_filter(GT, |a: &Value, b: &Value| charged_order(a, b).map(Ordering::is_gt));
    environment.add_filter(GE, |a: &Value, b: &Value| charged_order(a, b).map(Ordering::is_ge));
    environment.add_filter(CYCLE, cycle);
    environment.add_filter(ADD, add);
    environment.add_filter(MUL, mul);
    environment.add_filter(CONCAT, concat);
    environment.add_filter(EQ, equal);
    environment.add_filter(NE, not_equal);
    environment.add_filter(IN, is_in);
    environment.add_filter(LIST, list);
    environment.add_filter(TUPLE, tuple);
    environment.add_filter(MAP, map);
    environment.add_filter(SLICE, slice);
    environment.add_filter(CHANGED, changed);
}

/// The parts of a chain such as `1 < x < 3`, in the order of minijinja's CompareOp.
pub const PRESERVING: [&str; 8] = ["&==", "&!=", "&<", "&<=", "&>", "&>=", "&in", "&!in"];

fn compared(operator: &str, a: &Value, b: &Value) -> Result<bool, Error> {
    Ok(match operator {
        "&==" => equal(a, b)?,
        "&!=" => !equal(a, b)?,
        "&<" => charged_order(a, b)?.is_lt(),
        "&<=" => charged_order(a, b)?.is_le(),
        "&>" => charged_order(a, b)?.is_gt(),
        "&>=" => charged_order(a, b)?.is_ge(),
        "&in" => is_in(a, b)?,
        _ => !is_in(a, b)?,
    })
}

/// `{% for %}` over none is an error, as in Python.
fn looped(value: Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(failure("a for loop needs a list, got none"));
    }
    Ok(value)
}
