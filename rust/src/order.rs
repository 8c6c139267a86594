//! Python's comparisons: what is less than what, and what cannot be compared.

use std::cmp::Ordering;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use crate::budget::charge_deep;
use crate::filters::failure;
use crate::twins;

fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Seq if value.is_tuple() => "tuple",
        ValueKind::Seq => "list",
        ValueKind::Map => "dict",
        ValueKind::String => "str",
        ValueKind::Bool => "bool",
        ValueKind::None => "None",
        ValueKind::Undefined => "undefined",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        _ => "object",
    }
}

/// True and False are 1 and 0.
fn number(value: &Value) -> Option<Value> {
    match value.kind() {
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number => Some(value.clone()),
        _ => None,
    }
}

/// The order of two values. REQUIRES: they were charged for.
pub fn order(a: &Value, b: &Value) -> Result<Ordering, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Ok(twins::seen(a).cmp(&twins::seen(b)));
    }
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return Ok(a.cmp(&b));
    }
    if a.kind() == ValueKind::Seq && type_name(a) == type_name(b) {
        for (x, y) in a.try_iter()?.zip(b.try_iter()?) {
            if x.kind() == y.kind() && x.kind() != ValueKind::Seq && same(&x, &y)? {
                continue; // equal values need no order
            }
            let ordering = order(&x, &y)?;
            if ordering.is_ne() {
                return Ok(ordering);
            }
        }
        return Ok(a.len().cmp(&b.len()));
    }
    Err(failure(format!("{} and {} have no order", type_name(a), type_name(b))))
}

/// order() of values that are charged for here.
pub fn charged_order(a: &Value, b: &Value) -> Result<Ordering, Error> {
    if a.is_number() && b.is_number() {
        return order(a, b);
    }
    charge_deep(a)?;
    charge_deep(b)?;
    order(a, b)
}

/// Whether two values are equal.
pub fn same(a: &Value, b: &Value) -> Result<bool, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        return Ok(x == y || twins::seen(x) == twins::seen(y));
    }
    match (a.kind(), b.kind()) {
        (ValueKind::Bool | ValueKind::Number, ValueKind::Bool | ValueKind::Number) => {
            Ok(number(a) == number(b))
        }
        (x, y) if x != y => Ok(false),
        (ValueKind::Seq, _) => {
            if a.is_tuple() != b.is_tuple() || a.len() != b.len() {
                return Ok(false);
            }
            for (x, y) in a.try_iter()?.zip(b.try_iter()?) {
                if !same(&x, &y)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (ValueKind::Map, _) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for key in a.try_iter()? {
                let other = b.get_item(&key)?;
                if other.is_undefined() || !same(&a.get_item(&key)?, &other)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Ok(a == b),
    }
}

/// A stable sort; an error when two items have no order.
pub fn sort_by_key(
    items: Vec<Value>,
    reverse: bool,
    mut key: impl FnMut(&Value) -> Result<Vec<Value>, Error>,
) -> Result<Vec<Value>, Error> {
    let mut keyed = Vec::with_capacity(items.len());
    for item in items {
        keyed.push((key(&item)?, item));
    }
    let mut problem = None;
    keyed.sort_by(|(a, _), (b, _)| {
        if problem.is_some() {
            return Ordering::Equal;
        }
        let ordering = order_all(a, b).unwrap_or_else(|error| {
            problem = Some(error);
            Ordering::Equal
        });
        if reverse {
            ordering.reverse()
        } else {
            ordering
        }
    });
    match problem {
        Some(error) => Err(error),
        None => Ok(keyed.into_iter().map(|(_, item)| item).collect()),
    }
}

/// The order of lists of the same length.
pub fn order_all(a: &[Value], b: &[Value]) -> Result<Ordering, Error> {
    for (x, y) in a.iter().zip(b) {
        charge_deep(x)?;
        charge_deep(y)?;
        if a.len() > 1 && x.kind() == y.kind() && same(x, y)? {
            continue;
        }
        let ordering = order(x, y)?;
        if ordering.is_ne() {
            return Ok(ordering);
        }
    }
    Ok(Ordering::Equal)
}
