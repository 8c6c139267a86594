//! Operators that read or build more than a word, as filters that charge the work budget, and the
//! compiler pass that puts them in place of minijinja's instructions.

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use crate::budget::{charge, charge_deep, charge_shallow, to_text};

// No template can name these: a filter's name in a template is an identifier.
const ADD: &str = "+";
const MUL: &str = "*";
const CONCAT: &str = "~";
const EQ: &str = "==";
const NE: &str = "!=";
const IN: &str = "?in";
const LIST: &str = "[]";
const TUPLE: &str = "()";
const NO_CACHE: u8 = !0; // look the filter up each time

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
    if !a.is_number() || !b.is_number() {
        return None;
    }
    Some((f64::try_from(a.clone()).ok()?, f64::try_from(b.clone()).ok()?))
}

fn small(value: i128) -> Value {
    i64::try_from(value).map_or_else(|_| Value::from(value), Value::from)
}

pub fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        charge(x.len() + y.len())?;
        return Ok(Value::from([x, y].concat()));
    }
    if is_sequence(a) && is_sequence(b) {
        charge_shallow(a)?;
        charge_shallow(b)?;
        let items = a.try_iter()?.chain(b.try_iter()?);
        return Ok(if a.is_tuple() && b.is_tuple() {
            Value::from(Tuple::from(items.collect::<Vec<Value>>()))
        } else {
            Value::from(items.collect::<Vec<Value>>())
        });
    }
    if let Some(sum) = integers(a, b).and_then(|(x, y)| x.checked_add(y)) {
        return Ok(small(sum));
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
        Ok(Value::from_iter((0..times).flat_map(|_| items.iter().cloned())))
    };
    Some(repeat())
}

fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(result) = repeated(a, b).or_else(|| repeated(b, a)) {
        return result;
    }
    if let Some(product) = integers(a, b).and_then(|(x, y)| x.checked_mul(y)) {
        return Ok(small(product));
    }
    floats(a, b).map(|(x, y)| Value::from(x * y)).ok_or_else(|| unsupported("*", a, b))
}

fn concat(a: &Value, b: &Value) -> Result<Value, Error> {
    Ok(Value::from(to_text(a)? + &to_text(b)?))
}

fn equal(a: &Value, b: &Value) -> Result<bool, Error> {
    // Only values of the same kind are walked, and the walk ends with the shorter.
    if a.kind() == b.kind() && a.len() == b.len() {
        charge_deep(a)?;
        charge_deep(b)?;
    }
    Ok(a == b)
}

fn not_equal(a: &Value, b: &Value) -> Result<bool, Error> {
    equal(a, b).map(|same| !same)
}

fn is_in(value: &Value, container: &Value) -> Result<bool, Error> {
    if let Some(text) = container.as_str() {
        charge(text.len())?;
        return Ok(text.contains(&to_text(value)?));
    }
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map => Ok(!container.get_item(value)?.is_undefined()),
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

// Lists of lists are where values grow without any text growing: [x, x] eight times over has 256
// leaves. Each literal pays for all it holds.
fn list(items: Rest<Value>) -> Result<Value, Error> {
    items.iter().try_for_each(charge_deep)?;
    Ok(Value::from(items.0))
}

fn tuple(items: Rest<Value>) -> Result<Value, Error> {
    items.iter().try_for_each(charge_deep)?;
    Ok(Value::from(Tuple::from(items.0)))
}

pub fn register(environment: &mut Environment<'static>) {
    environment.add_filter(ADD, add);
    environment.add_filter(MUL, mul);
    environment.add_filter(CONCAT, concat);
    environment.add_filter(EQ, equal);
    environment.add_filter(NE, not_equal);
    environment.add_filter(IN, is_in);
    environment.add_filter(LIST, list);
    environment.add_filter(TUPLE, tuple);
}

/// Replaces the instructions in place, one for one, so that jumps stay right. Returns the bytes of
/// the longest literal text.
pub fn rewrite(instructions: &mut Instructions<'static>) -> usize {
    let mut longest_literal = 0;
    let mut index = 0;
    while let Some(instruction) = instructions.get_mut(index) {
        let (name, operands) = match instruction {
            Instruction::Add => (ADD, 2),
            Instruction::Mul => (MUL, 2),
            Instruction::StringConcat => (CONCAT, 2),
            Instruction::Eq => (EQ, 2),
            Instruction::Ne => (NE, 2),
            Instruction::In => (IN, 2),
            Instruction::BuildList(Some(n)) if (1..=0xffff).contains(n) => (LIST, *n as u16),
            Instruction::BuildTuple(Some(n)) if (1..=0xffff).contains(n) => (TUPLE, *n as u16),
            Instruction::EmitRaw(text) => {
                longest_literal = longest_literal.max(text.len());
                ("", 0)
            }
            _ => ("", 0),
        };
        if operands > 0 {
            *instruction = Instruction::ApplyFilter(name, Some(operands), NO_CACHE);
        }
        index += 1;
    }
    longest_literal
}
