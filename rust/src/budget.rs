//! The work budget of one render. Fuel counts instructions; this counts the bytes that single
//! instructions read and build, so that repeated doubling of a string also ends early.
//!
//! minijinja renders on the calling thread, so the budget is the thread's.

use std::cell::Cell;
use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use crate::json_out::{number, Floats};
use crate::objects::held;
use crate::repr::push_repr;

/// The cost of one element of a list or a map, in bytes.
pub const NODE_BYTES: usize = 32;
/// Limit of the nesting of a value: lists and maps are freed, compared and printed by recursion.
/// JSON from outside nests at most 128 deep, literals in a template 64.
const VALUE_DEPTH_MAX: usize = 192;

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(0) };
    static EXHAUSTED: Cell<bool> = const { Cell::new(false) };
}

pub fn begin(bytes: usize) {
    LEFT.set(bytes);
    EXHAUSTED.set(false);
}

pub fn exhausted() -> bool {
    EXHAUSTED.get()
}

pub fn charge(bytes: usize) -> Result<(), Error> {
    match LEFT.get().checked_sub(bytes) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => {
            EXHAUSTED.set(true);
            Err(Error::new(ErrorKind::InvalidOperation, "the template does too much work"))
        }
    }
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// A `loop` holds the items next to its own, so keeping it beyond its {% for %} could form a chain.
pub fn refuse_loop(value: &Value) -> Result<(), Error> {
    // It is a map to templates, like any object that says nothing else.
    if value.as_object().is_some_and(|object| object.type_name().ends_with("::Loop")) {
        return Err(invalid("loop must be used as loop.index and the like, not as a value"));
    }
    Ok(())
}

/// Charges the cost of a walk over the whole of `value`, and refuses a value that nests too deeply.
/// Lazy iterables count only their length, because walking them would run them.
pub fn charge_deep(value: &Value) -> Result<(), Error> {
    charge_levels(value, VALUE_DEPTH_MAX)
}

fn charge_levels(value: &Value, levels: usize) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return charge(text.len());
    }
    refuse_loop(value)?;
    if levels == 0 {
        return Err(invalid(format!("a value nests deeper than {VALUE_DEPTH_MAX} levels")));
    }
    match value.kind() {
        ValueKind::Seq => {
            for item in value.try_iter()? {
                charge(NODE_BYTES)?;
                charge_levels(&item, levels - 1)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                charge(NODE_BYTES)?;
                charge_levels(&key, levels - 1)?;
                charge_levels(&value.get_item(&key)?, levels - 1)?;
            }
        }
        ValueKind::Iterable => charge(NODE_BYTES.saturating_mul(value.len().unwrap_or(1)))?,
        _ => {
            for item in held(value) {
                charge(NODE_BYTES)?;
                charge_levels(item, levels - 1)?;
            }
        }
    }
    Ok(())
}

/// Charges the cost of a walk over the first level of `value`.
pub fn charge_shallow(value: &Value) -> Result<(), Error> {
    if value.is_kwargs() {
        return charge_deep(value);
    }
    refuse_loop(value)?;
    match value.as_str() {
        Some(text) => charge(text.len()),
        None => charge(NODE_BYTES.saturating_mul(value.len().unwrap_or(1))),
    }
}

pub fn collect(items: impl Iterator<Item = Value>) -> Result<Vec<Value>, Error> {
    let mut list = Vec::new();
    for item in items {
        charge(NODE_BYTES)?;
        list.push(item);
    }
    Ok(list)
}

/// Prints `value` within the budget, as Python's str() shows it.
pub fn print(value: &Value, out: &mut dyn Write) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => charge(text.len()).map(|()| out.write_str(text))?,
        None => match value.kind() {
            ValueKind::Undefined => Ok(()),
            ValueKind::None => out.write_str("None"),
            ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }),
            ValueKind::Number => {
                let text = number(value, Floats::Python);
                charge(text.len()).map(|()| out.write_str(&text))?
            }
            _ => {
                charge_deep(value)?;
                let mut text = String::new();
                push_repr(&mut text, value)?;
                charge(text.len()).map(|()| out.write_str(&text))?
            }
        },
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "cannot print the value"))
}

pub fn to_text(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    print(value, &mut out)?;
    Ok(out)
}
