//! `tojson` as expected by Hugging Face's chat templates: Python's json.dumps with
//! ensure_ascii=False and no HTML escaping.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

pub struct JsonStyle {
    pub indent: Option<usize>,
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
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => push_string(&mut self.out, value.as_str().unwrap_or("")),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
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
            keys.sort();
        }
        self.out.push('{');
        for (count, key) in keys.iter().enumerate() {
            self.begin_item(count, depth);
            match key.kind() {
                ValueKind::String => push_string(&mut self.out, key.as_str().unwrap_or("")),
                ValueKind::Bool => {
                    push_string(&mut self.out, if key.is_true() { "true" } else { "false" })
                }
                ValueKind::None => push_string(&mut self.out, "null"),
                _ => push_string(&mut self.out, &key.to_string()),
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
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}

fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A number as Python prints it: integers whole, floats with the shortest digits that read back.
pub fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(x) => python_float(x),
        Err(_) => value.to_string(),
    }
}

fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_string();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
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
