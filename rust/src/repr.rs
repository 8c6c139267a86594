//! How Python shows values: str() and repr().

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use crate::budget::charge;
use crate::filters::failure;
use crate::json_out::{number, Floats};
use crate::objects::{self, Shown};
use crate::twins;

pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return c == ' ' || c.is_ascii_graphic();
    }
    if c.is_alphanumeric() {
        return true;
    }
    // Rust escapes what Python calls unprintable, and marks at the beginning of a text.
    let text = String::from_iter(['a', c]);
    text.escape_debug().eq(text.chars())
}

/// A string in quotes, with escapes.
pub fn push_quoted(out: &mut String, text: &str) {
    let seen = twins::seen(text);
    let quote = if seen.contains('\'') && !seen.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match twins::original(c) {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            shown if shown == '\\' || shown == quote => {
                out.push('\\');
                out.push(c);
            }
            shown if is_printable(shown) => out.push(c),
            shown => {
                let code = u32::from(shown);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

fn push_items(
    out: &mut String,
    items: impl Iterator<Item = Value>,
    open: &str,
    close: &str,
) -> Result<usize, Error> {
    let mut count = 0;
    out.push_str(open);
    for item in items {
        if count > 0 {
            out.push_str(", ");
        }
        push_repr(out, &item)?;
        count += 1;
    }
    if count == 1 && open == "(" {
        out.push(',');
    }
    out.push_str(close);
    Ok(count)
}

/// repr(value). REQUIRES: its depth was checked (charge_deep).
pub fn push_repr(out: &mut String, value: &Value) -> Result<(), Error> {
    charge(1)?;
    if let Some(text) = value.as_str() {
        charge(text.len())?;
        push_quoted(out, text);
        return Ok(());
    }
    if let Some(shown) = objects::shown(value) {
        match shown {
            Shown::Text(text) => out.push_str(&text),
            Shown::Tuple(items) => {
                push_items(out, items.into_iter(), "(", ")")?;
            }
            Shown::View(name, items) => {
                out.push_str(name);
                push_items(out, items.into_iter(), "([", "])")?;
            }
        }
        return Ok(());
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value, Floats::Python)),
        ValueKind::Seq if value.is_tuple() => {
            push_items(out, value.try_iter()?, "(", ")")?;
        }
        ValueKind::Iterable => return Err(failure("a range has no text; make it a list")),
        ValueKind::Seq => {
            push_items(out, value.try_iter()?, "[", "]")?;
        }
        ValueKind::Map => {
            out.push('{');
            for (count, key) in value.try_iter()?.enumerate() {
                if count > 0 {
                    out.push_str(", ");
                }
                push_repr(out, &key)?;
                out.push_str(": ");
                push_repr(out, &value.get_item(&key)?)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}
