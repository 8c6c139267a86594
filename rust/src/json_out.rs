//! `tojson` as expected by Hugging Face's chat templates: Python's json.dumps with
//! ensure_ascii=False and no HTML escaping.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use crate::objects::is_view;
use crate::order::sort_by_key;
use crate::twins;

pub struct JsonStyle {
    pub indent: Option<String>,
    pub ascii: bool,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

struct Writer<'a> {
    style: &'a JsonStyle,
    bytes_max: usize,
    depth_max: usize,
    out: String,
}

pub fn to_json(
    value: &Value,
    style: &JsonStyle,
    bytes_max: usize,
    depth_max: usize,
) -> Result<String, Error> {
    let mut writer = Writer { style, bytes_max, depth_max, out: String::new() };
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn failure(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if self.out.len() > self.bytes_max {
            return Err(failure(format!("tojson makes more than {} bytes", self.bytes_max)));
        }
        if depth > self.depth_max {
            return Err(failure(format!("tojson nests deeper than {}", self.depth_max)));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value, Floats::Json)),
            ValueKind::String => self.string(value.as_str().unwrap_or("")),
            ValueKind::Seq if !is_view(value) => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => return Err(failure(format!("a value of type {kind} has no JSON form"))),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut count = 0;
        for item in value.try_iter()? {
            self.begin_item(count, depth);
            self.value(&item, depth + 1)?;
            count += 1;
        }
        self.end(count, depth, ']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.style.sort_keys {
            keys = sort_by_key(keys, false, |key| Ok(vec![key.clone()]))?;
        }
        self.out.push('{');
        for (count, key) in keys.iter().enumerate() {
            self.begin_item(count, depth);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or("")),
                ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
                ValueKind::None => self.string("null"),
                ValueKind::Number => self.string(&number(key, Floats::Json)),
                kind => return Err(failure(format!("a {kind} cannot be a key of JSON"))),
            }
            self.out.push_str(&self.style.key_separator);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.end(keys.len(), depth, '}');
        Ok(())
    }

    fn begin_item(&mut self, count: usize, depth: usize) {
        if count > 0 {
            self.out.push_str(&self.style.item_separator);
        }
        self.new_line(depth + 1);
    }

    fn end(&mut self, count: usize, depth: usize, bracket: char) {
        if count > 0 {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn string(&mut self, text: &str) {
        push_string(&mut self.out, text, self.style.ascii);
    }
}

fn push_string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match twins::original(c) {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            shown if shown < ' ' => out.push_str(&format!("\\u{:04x}", shown as u32)),
            shown if ascii && !shown.is_ascii() => {
                for unit in shown.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}

/// How floats that are no numbers are written.
#[derive(Clone, Copy, PartialEq)]
pub enum Floats {
    Json,
    Python,
}

/// A number as Python prints it: integers whole, floats with the shortest digits that read back.
pub fn number(value: &Value, floats: Floats) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(x) => python_float(x, floats),
        Err(_) => value.to_string(),
    }
}

fn python_float(x: f64, floats: Floats) -> String {
    if x.is_nan() {
        return if floats == Floats::Json { "NaN" } else { "nan" }.to_string();
    }
    if x.is_infinite() {
        let name = if floats == Floats::Json { "Infinity" } else { "inf" };
        return if x > 0.0 { name.to_string() } else { format!("-{name}") };
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}
