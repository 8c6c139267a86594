//! The work budget of one render: fuel counts instructions, this counts the bytes that single
//! instructions read and build, so that doubling a string, say, ends early too.
//!
//! minijinja renders on the calling thread, so the budget is the thread's.

use std::cell::Cell;
use std::fmt::{self, Write};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use crate::json_out::number;

/// What one element of a list or a map costs, in bytes.
const NODE_BYTES: usize = 32;

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

/// Charges what a walk over the whole of `value` costs. Lazy iterables count their length only:
/// walking them would run them.
pub fn charge_deep(value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return charge(text.len());
    }
    match value.kind() {
        ValueKind::Seq => {
            for item in value.try_iter()? {
                charge(NODE_BYTES)?;
                charge_deep(&item)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                charge(NODE_BYTES)?;
                charge_deep(&key)?;
                charge_deep(&value.get_item(&key)?)?;
            }
        }
        ValueKind::Iterable => charge(NODE_BYTES * value.len().unwrap_or(1))?,
        _ => {}
    }
    Ok(())
}

/// Charges what a walk over the first level of `value` costs.
pub fn charge_shallow(value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => charge(text.len()),
        None => charge(NODE_BYTES * value.len().unwrap_or(1)),
    }
}

struct Charged<'a> {
    out: &'a mut dyn Write,
    failure: Option<Error>,
}

impl Write for Charged<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if let Err(error) = charge(text.len()) {
            self.failure = Some(error);
            return Err(fmt::Error);
        }
        self.out.write_str(text)
    }
}

/// Prints `value` within the budget, scalars as Python prints them.
pub fn print(value: &Value, out: &mut dyn Write) -> Result<(), Error> {
    let mut charged = Charged { out, failure: None };
    let written = match value.as_str() {
        Some(text) => charged.write_str(text),
        None => match value.kind() {
            ValueKind::Undefined => Ok(()),
            ValueKind::None => charged.write_str("None"),
            ValueKind::Bool => charged.write_str(if value.is_true() { "True" } else { "False" }),
            ValueKind::Number => charged.write_str(&number(value)),
            _ => write!(charged, "{value}"),
        },
    };
    match (charged.failure, written) {
        (Some(error), _) => Err(error),
        (None, Err(_)) => Err(Error::new(ErrorKind::WriteFailure, "cannot print the value")),
        (None, Ok(())) => Ok(()),
    }
}

pub fn to_text(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    print(value, &mut out)?;
    Ok(out)
}
