//! Jinja2's filters where minijinja's differ from them, or put no bound on what they make.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};

use crate::json_out::{to_json, JsonStyle};

const INDENT_MAX: usize = 64;
const JSON_DEPTH_MAX: usize = 64;

pub fn failure(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn checked_indent(width: usize) -> Result<usize, Error> {
    if width > INDENT_MAX {
        return Err(failure(format!("an indent must be at most {INDENT_MAX}, got {width}")));
    }
    Ok(width)
}

/// json.dumps(value, ensure_ascii=False, indent, separators, sort_keys).
pub fn tojson(value: &Value, kwargs: Kwargs, bytes_max: usize) -> Result<Value, Error> {
    let indent = kwargs.get::<Option<usize>>("indent")?.map(checked_indent).transpose()?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(failure("tojson's separators must be two strings")),
        None if indent.is_some() => (",".to_string(), ": ".to_string()),
        None => (", ".to_string(), ": ".to_string()),
    };
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.get::<Option<bool>>("ensure_ascii")?;
    kwargs.assert_all_used()?;
    let style = JsonStyle { indent, item_separator, key_separator, sort_keys };
    to_json(value, &style, bytes_max, JSON_DEPTH_MAX).map(Value::from)
}

/// Jinja2's indent: a trailing newline stays, blank lines are indented only on request.
pub fn indent(
    text: &str,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or(4);
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let indention = " ".repeat(checked_indent(width)?);
    let mut out = String::with_capacity(text.len());
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if (i == 0 && first) || (i > 0 && (blank || !line.is_empty())) {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(out)
}
