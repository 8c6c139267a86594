//! Jinja2's filters of text.

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use crate::arguments::{bind, flag, given, integer_or, needed, split};
use crate::budget::{charge, charge_deep, to_text};
use crate::characters as ch;
use crate::filters::failure;
use crate::formats;
use crate::lists::integer_argument;
use crate::methods;
use crate::repr::push_repr;
use crate::strings::{self, Side};
use crate::twins::{self, Searched};

type Filter = Result<Value, Error>;

pub fn text_of(value: Option<Value>) -> Result<String, Error> {
    to_text(&value.unwrap_or_default())
}

pub fn upper(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("upper", ["s"], args)?;
    Ok(Value::from(text_of(value)?.to_uppercase()))
}

pub fn lower(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("lower", ["s"], args)?;
    Ok(Value::from(text_of(value)?.to_lowercase()))
}

pub fn capitalize(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("capitalize", ["s"], args)?;
    Ok(Value::from(ch::capitalize(&text_of(value)?)))
}

/// Words begin after white space, hyphens and opening brackets.
pub fn title(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("title", ["s"], args)?;
    let text = text_of(value)?;
    let is_gap = |c: char| ch::is_space(c) || "-({[<".contains(twins::original(c));
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let word = rest.find(|c| !is_gap(c)).unwrap_or(rest.len());
        out.push_str(&rest[..word]);
        rest = &rest[word..];
        let end = rest.find(is_gap).unwrap_or(rest.len());
        let mut letters = rest[..end].chars();
        out.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&letters.as_str().to_lowercase());
        rest = &rest[end..];
    }
    Ok(Value::from(out))
}

pub fn trim(_: &mut State, args: &[Value]) -> Filter {
    let [value, chars] = bind("trim", ["value", "chars"], args)?;
    let chars = given(chars).map(|chars| to_text(&chars)).transpose()?;
    Ok(Value::from(strings::strip(&text_of(value)?, chars.as_deref(), Side::Both)))
}

pub fn replace(_: &mut State, args: &[Value]) -> Filter {
    let [value, old, new, count] = bind("replace", ["s", "old", "new", "count"], args)?;
    let (old, new) = (needed("replace", "old", old)?, needed("replace", "new", new)?);
    let count = integer_or("replace", given(count), -1)?;
    strings::replace(&text_of(value)?, &to_text(&old)?, &to_text(&new)?, count).map(Value::from)
}

/// The bytes of the first `count` characters.
fn head(text: &str, count: usize) -> &str {
    text.char_indices().nth(count).map_or(text, |(at, _)| &text[..at])
}

pub fn truncate(_: &mut State, args: &[Value]) -> Filter {
    let [value, length, kill_words, end, leeway] =
        bind("truncate", ["s", "length", "killwords", "end", "leeway"], args)?;
    let value = value.unwrap_or_default();
    let text = value.as_str().ok_or_else(|| failure("truncate needs a string"))?;
    let length = integer_argument("truncate", length, 255)?;
    let end = end.map_or(Ok("...".to_string()), |end| to_text(&end))?;
    let leeway = integer_argument("truncate", given(leeway), 5)?;
    let end_length = end.chars().count();
    if length < end_length {
        return Err(failure(format!("truncate needs a length of at least {end_length}")));
    }
    charge(end.len())?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let mut kept = head(text, length - end_length);
    if !flag(kill_words, false) {
        kept = kept.rfind(' ').map_or(kept, |at| &kept[..at]);
    }
    Ok(Value::from(format!("{kept}{end}")))
}

pub fn wordcount(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("wordcount", ["s"], args)?;
    let text = text_of(value)?;
    let words = text.split(|c| !ch::is_word(c)).filter(|word| !word.is_empty());
    Ok(Value::from(words.count()))
}

pub fn center(_: &mut State, args: &[Value]) -> Filter {
    let [value, width] = bind("center", ["value", "width"], args)?;
    let text = text_of(value)?;
    let width = integer_argument("center", width, 80)?;
    let missing = width.saturating_sub(text.chars().count());
    charge(missing)?;
    let left = missing / 2 + (missing & width & 1);
    Ok(Value::from(format!("{}{text}{}", " ".repeat(left), " ".repeat(missing - left))))
}

pub fn string(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("string", ["object"], args)?;
    Ok(Value::from(text_of(value)?))
}

fn quote_url(text: &str, also: &str, plus_for_space: bool) -> String {
    let mut out = String::new();
    for byte in twins::seen(text).bytes() {
        match byte {
            b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            _ if also.as_bytes().contains(&byte) => out.push(char::from(byte)),
            b' ' if plus_for_space => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

pub fn urlencode(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("urlencode", ["value"], args)?;
    let value = value.unwrap_or_default();
    charge_deep(&value)?;
    if value.as_str().is_some() || value.try_iter().is_err() {
        let text = to_text(&value)?;
        charge(text.len().saturating_mul(3))?;
        return Ok(Value::from(quote_url(&text, "/", false)));
    }
    let mut parts = Vec::new();
    let is_map = value.kind() == ValueKind::Map;
    for item in value.try_iter()? {
        let (key, item) = if is_map {
            let found = value.get_item(&item)?;
            (item, found)
        } else {
            (item.get_item_by_index(0)?, item.get_item_by_index(1)?)
        };
        let (key, item) = (to_text(&key)?, to_text(&item)?);
        charge((key.len() + item.len()).saturating_mul(3))?;
        parts.push(format!("{}={}", quote_url(&key, "", true), quote_url(&item, "", true)));
    }
    Ok(Value::from(parts.join("&")))
}

fn escaped(text: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match twins::original(c) {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(c),
        }
    }
    charge(out.len())?;
    Ok(out)
}

pub fn escape(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("escape", ["s"], args)?;
    Ok(Value::from(escaped(&text_of(value)?)?))
}

pub fn safe(_: &mut State, args: &[Value]) -> Filter {
    string_named("safe", args)
}

fn string_named(name: &str, args: &[Value]) -> Filter {
    let [value] = bind(name, ["value"], args)?;
    Ok(Value::from(text_of(value)?))
}

pub fn xmlattr(_: &mut State, args: &[Value]) -> Filter {
    let [value, auto_space] = bind("xmlattr", ["d", "autospace"], args)?;
    let value = value.unwrap_or_default();
    charge_deep(&value)?;
    if value.kind() != ValueKind::Map {
        return Err(failure("xmlattr needs a mapping"));
    }
    let mut parts = Vec::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        if item.is_none() || item.is_undefined() {
            continue;
        }
        let name = to_text(&key)?;
        if name.contains(|c| ch::is_space(c) || "/>=".contains(twins::original(c))) {
            return Err(failure(format!("{name:?} is no name of an attribute")));
        }
        parts.push(format!("{}=\"{}\"", escaped(&name)?, escaped(&to_text(&item)?)?));
    }
    let space = if flag(auto_space, true) && !parts.is_empty() { " " } else { "" };
    Ok(Value::from(format!("{space}{}", parts.join(" "))))
}

/// Without what stands between `begin` and `end`.
fn without(text: &str, begin: &str, end: &str) -> Result<String, Error> {
    let searched = Searched::new(text)?;
    let seen = searched.seen();
    let mut out = String::with_capacity(text.len());
    let mut kept = 0;
    while let Some(from) = seen[kept..].find(begin).map(|at| kept + at) {
        let Some(to) = seen[from..].find(end).map(|at| from + at + end.len()) else { break };
        out.push_str(searched.part(kept, from));
        kept = to;
    }
    out.push_str(searched.part(kept, seen.len()));
    Ok(out)
}

const ENTITIES: [(&str, &str); 7] = [
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&quot;", "\""),
    ("&#34;", "\""),
    ("&#39;", "'"),
    ("&nbsp;", "\u{a0}"),
    ("&amp;", "&"),
];

pub fn striptags(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("striptags", ["value"], args)?;
    let text = text_of(value)?;
    charge(text.len().saturating_mul(16))?;
    let text = without(&without(&text, "<!--", "-->")?, "<", ">")?;
    let words: Vec<&str> = text.split(ch::is_space).filter(|word| !word.is_empty()).collect();
    let mut text = words.join(" ");
    for (entity, character) in ENTITIES {
        text = strings::replace(&text, entity, character, -1)?;
    }
    Ok(Value::from(text))
}

pub fn filesizeformat(_: &mut State, args: &[Value]) -> Filter {
    let [value, binary] = bind("filesizeformat", ["value", "binary"], args)?;
    let value = value.unwrap_or_default();
    let bytes = match value.as_str() {
        Some(text) => text.trim().parse::<f64>().ok(),
        None => f64::try_from(value.clone()).ok(),
    };
    let bytes = bytes.ok_or_else(|| failure("filesizeformat needs a number"))?;
    let binary = flag(binary, false);
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    let units = if binary {
        ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]
    } else {
        ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]
    };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{} Bytes", bytes.trunc() as i64)));
    }
    let mut unit = base;
    for (at, name) in units.iter().enumerate() {
        unit *= base;
        if bytes < unit || at + 1 == units.len() {
            return Ok(Value::from(format!("{:.1} {name}", base * bytes / unit)));
        }
    }
    Err(failure("filesizeformat needs a number"))
}

/// Keys in order, on one line: a line of more than 80 characters would be broken by Python, so it
/// is refused.
pub fn pprint(_: &mut State, args: &[Value]) -> Filter {
    const LINE_MAX: usize = 80;
    fn sorted(value: &Value) -> Filter {
        match value.kind() {
            ValueKind::Map => {
                let keys: Vec<Value> = value.try_iter()?.collect();
                let keys = crate::order::sort_by_key(keys, false, |key| Ok(vec![key.clone()]))?;
                let pairs = keys.into_iter().map(|key| {
                    let item = sorted(&value.get_item(&key)?)?;
                    Ok((key, item))
                });
                let map: indexmap::IndexMap<Value, Value> = pairs.collect::<Result<_, Error>>()?;
                Ok(Value::from_object(map))
            }
            ValueKind::Seq if !value.is_tuple() => {
                let items = value.try_iter()?.map(|item| sorted(&item));
                Ok(Value::from(items.collect::<Result<Vec<_>, _>>()?))
            }
            _ => Ok(value.clone()),
        }
    }
    let [value] = bind("pprint", ["value"], args)?;
    let value = value.unwrap_or_default();
    charge_deep(&value)?;
    let mut out = String::new();
    push_repr(&mut out, &sorted(&value)?)?;
    if out.chars().count() > LINE_MAX {
        return Err(failure(format!("pprint shows at most {LINE_MAX} characters; use tojson")));
    }
    Ok(Value::from(out))
}

/// `format % values`.
pub fn format(_: &mut State, args: &[Value]) -> Filter {
    let (positional, kwargs) = split(args)?;
    let (format, values) =
        positional.split_first().ok_or_else(|| failure("format needs a string"))?;
    let format = to_text(format)?;
    let made = match kwargs {
        Some(_) if !values.is_empty() => {
            return Err(failure("format takes values or names, not both"));
        }
        Some(kwargs) => {
            let pairs = kwargs.args().map(|name| Ok((Value::from(name), kwargs.peek(name)?)));
            let map: indexmap::IndexMap<Value, Value> = pairs.collect::<Result<_, Error>>()?;
            formats::percent(&format, &Value::from_object(map))?
        }
        None => {
            let values = minijinja::value::Tuple::from(values.to_vec());
            formats::percent(&format, &Value::from(values))?
        }
    };
    Ok(Value::from(made))
}

pub fn default(_: &mut State, args: &[Value]) -> Filter {
    let [value, default, boolean] = bind("default", ["value", "default_value", "boolean"], args)?;
    let value = value.unwrap_or_default();
    let missing = value.is_undefined() || (flag(boolean, false) && !value.is_true());
    Ok(if missing { default.unwrap_or_else(|| Value::from("")) } else { value })
}

/// An attribute, not an item: only methods are attributes of what a template works with.
pub fn attr(_: &mut State, args: &[Value]) -> Filter {
    let [value, name] = bind("attr", ["obj", "name"], args)?;
    let (value, name) = (value.unwrap_or_default(), needed("attr", "name", name)?);
    let name = to_text(&name)?;
    if let Some(known) = methods::known(&name) {
        return Ok(crate::objects::method(&value, known)?.unwrap_or_default());
    }
    match value.kind() {
        ValueKind::Map | ValueKind::Seq
            if value.downcast_object_ref::<crate::objects::Group>().is_none() =>
        {
            Ok(Value::UNDEFINED)
        }
        _ => Ok(value.get_attr(&name).unwrap_or_default()),
    }
}
