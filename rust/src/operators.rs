//! Operators that read or build more than one word, as filters that charge the work budget, and
//! the compiler pass that replaces minijinja's instructions with them.

use indexmap::IndexMap;
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::budget::{charge, charge_deep, charge_shallow, collect, to_text};

// No template can name these: a filter's name in a template is an identifier.
const ADD: &str = "+";
const MUL: &str = "*";
const CONCAT: &str = "~";
const EQ: &str = "==";
const NE: &str = "!=";
const IN: &str = "?in";
const LIST: &str = "[]";
const TUPLE: &str = "()";
const MAP: &str = "{}";
const SLICE: &str = "[:]";
const CHANGED: &str = ".changed";
const NO_CACHE: u8 = !0; // no cached lookup

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

pub fn register(environment: &mut Environment<'static>) {
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

/// The compiled form of `{% set variable.name = value %}`, after the value has been computed.
pub struct Assignment {
    index: u32, // of the first of its two instructions
    pub variable: &'static str,
    pub name: &'static str,
}

/// The assignments of a program; None if one goes deeper than `variable.name`, which Jinja2 does
/// not have.
pub fn assignments(instructions: &mut Instructions<'static>) -> Option<Vec<Assignment>> {
    let mut found = Vec::new();
    let mut variable = None;
    let mut index = 0;
    while let Some(instruction) = instructions.get_mut(index) {
        if let Instruction::SetAttr(name) = instruction {
            found.push(Assignment { index: index - 1, variable: variable?, name });
        }
        variable = match instruction {
            Instruction::Lookup(name) => Some(*name),
            _ => None,
        };
        index += 1;
    }
    Some(found)
}

/// Compiles `assignment` to the filter of that name, which takes the value and returns nothing.
pub fn rewrite_assignment(
    instructions: &mut Instructions<'static>,
    assignment: &Assignment,
    filter: &'static str,
) {
    if let Some(instruction) = instructions.get_mut(assignment.index) {
        *instruction = Instruction::ApplyFilter(filter, Some(1), NO_CACHE);
    }
    if let Some(instruction) = instructions.get_mut(assignment.index + 1) {
        *instruction = Instruction::DiscardTop;
    }
}

/// Replaces the instructions in place, one for one, so that jumps stay correct. Returns the size
/// of the longest literal text in bytes.
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
            Instruction::BuildMap(n) if (1..=0x7fff).contains(n) => (MAP, 2 * *n as u16),
            Instruction::Slice => (SLICE, 4),
            Instruction::CallMethod("changed", Some(operands)) => (CHANGED, *operands),
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
