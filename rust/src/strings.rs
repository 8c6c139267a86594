//! Methods of Python's str. What a template sees of a text is what its twins stand for; what it
//! gets are parts of the text itself.

use minijinja::value::Tuple;
use minijinja::{Error, Value};

use crate::arguments::{bind, flag, given, integer, integer_or, needed, positional, string};
use crate::budget::{charge, NODE_BYTES};
use crate::characters as ch;
use crate::filters::failure;
use crate::formats;
use crate::twins::{self, Searched};

fn strings<T: Into<String>>(items: impl IntoIterator<Item = T>) -> Result<Value, Error> {
    let mut list = Vec::new();
    for item in items {
        charge(NODE_BYTES)?;
        list.push(Value::from(item.into()));
    }
    Ok(Value::from(list))
}

/// Where `needle` begins, from the left and without overlaps.
fn matches(text: &str, needle: &str, most: usize) -> Vec<usize> {
    text.match_indices(needle).take(most).map(|(at, _)| at).collect()
}

/// The last `most` of them, the last first.
fn matches_from_end(text: &str, needle: &str, most: usize) -> Vec<usize> {
    text.rmatch_indices(needle).take(most).map(|(at, _)| at).collect()
}

fn most(limit: i64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Words between white space; `limit` splits from the left.
fn split_words(text: &str, limit: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start_matches(ch::is_space);
    while !rest.is_empty() {
        if words.len() == limit {
            words.push(rest);
            break;
        }
        let end = rest.find(ch::is_space).unwrap_or(rest.len());
        words.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(ch::is_space);
    }
    words
}

fn split_words_from_end(text: &str, limit: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_end_matches(ch::is_space);
    while !rest.is_empty() {
        if words.len() == limit {
            words.push(rest);
            break;
        }
        let begin = rest.char_indices().rev().find(|(_, c)| ch::is_space(*c));
        let begin = begin.map_or(0, |(at, c)| at + c.len_utf8());
        words.push(&rest[begin..]);
        rest = rest[..begin].trim_end_matches(ch::is_space);
    }
    words.reverse();
    words
}

fn split(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let [separator, limit] = bind("split", ["sep", "maxsplit"], args)?;
    let limit = most(integer_or("split", limit, -1)?);
    let Some(separator) = given(separator) else {
        return strings(if from_end {
            split_words_from_end(text, limit)
        } else {
            split_words(text, limit)
        });
    };
    let separator = twins::seen(string("split", &separator)?).into_owned();
    if separator.is_empty() {
        return Err(failure("split: the separator must not be empty"));
    }
    let searched = Searched::new(text)?;
    let mut places = if from_end {
        matches_from_end(searched.seen(), &separator, limit)
    } else {
        matches(searched.seen(), &separator, limit)
    };
    places.sort_unstable();
    let mut parts = Vec::with_capacity(places.len() + 1);
    let mut begin = 0;
    for place in places {
        parts.push(searched.part(begin, place));
        begin = place + separator.len();
    }
    parts.push(searched.part(begin, searched.seen().len()));
    strings(parts)
}

fn partition(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let [separator] = positional::<1>("partition", args)?;
    let separator = needed("partition", "sep", separator)?;
    let separator = twins::seen(string("partition", &separator)?).into_owned();
    if separator.is_empty() {
        return Err(failure("partition: the separator must not be empty"));
    }
    let searched = Searched::new(text)?;
    let seen = searched.seen();
    let place = if from_end { seen.rfind(&separator) } else { seen.find(&separator) };
    let parts = match place {
        Some(at) => {
            let end = at + separator.len();
            [searched.part(0, at), searched.part(at, end), searched.part(end, seen.len())]
        }
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// str.replace, and Jinja2's filter of the same name.
pub fn replace(text: &str, from: &str, to: &str, count: i64) -> Result<String, Error> {
    let from = twins::seen(from);
    let searched = Searched::new(text)?;
    let seen = searched.seen();
    let places = matches(seen, &from, most(count));
    charge(places.len().saturating_mul(to.len()))?;
    let mut out = String::with_capacity(text.len());
    let mut begin = 0;
    for place in places {
        out.push_str(searched.part(begin, place));
        out.push_str(to);
        begin = place + from.len();
    }
    out.push_str(searched.part(begin, seen.len()));
    Ok(out)
}

#[derive(Clone, Copy)]
pub enum Side {
    Left,
    Right,
    Both,
}

/// Without characters of `chars` at its ends; without white space if there are none.
pub fn strip<'a>(text: &'a str, chars: Option<&str>, side: Side) -> &'a str {
    let chars: Option<Vec<char>> = chars.map(|chars| twins::seen(chars).chars().collect());
    let taken = |c: char| match &chars {
        Some(chars) => chars.contains(&twins::original(c)),
        None => ch::is_space(c),
    };
    let text = if matches!(side, Side::Right) { text } else { text.trim_start_matches(taken) };
    if matches!(side, Side::Left) {
        text
    } else {
        text.trim_end_matches(taken)
    }
}

fn strip_method(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [chars] = positional::<1>(method, args)?;
    let chars = given(chars);
    let chars = chars.as_ref().map(|chars| string(method, chars)).transpose()?;
    let side = match method {
        "lstrip" => Side::Left,
        "rstrip" => Side::Right,
        _ => Side::Both,
    };
    Ok(Value::from(strip(text, chars, side)))
}

/// The bytes of characters begin..end, as a slice of Python would count them; None if begin is
/// beyond the end, where not even an empty text is found.
fn window(
    text: &str,
    begin: Option<Value>,
    end: Option<Value>,
) -> Result<Option<(usize, usize)>, Error> {
    let length = text.chars().count() as i64;
    let place = |value: Option<Value>, default: i64| -> Result<i64, Error> {
        let Some(value) = given(value) else { return Ok(default) };
        let index = integer("a position", &value)?;
        Ok(if index < 0 { index.saturating_add(length).max(0) } else { index })
    };
    let (begin, end) = (place(begin, 0)?, place(end, length)?.min(length));
    if begin > end {
        return Ok(None);
    }
    let byte = |at: i64| text.char_indices().nth(at as usize).map_or(text.len(), |(byte, _)| byte);
    Ok(Some((byte(begin), byte(end))))
}

fn starts_or_ends(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [wanted, begin, end] = positional::<3>(method, args)?;
    let wanted = needed(method, "prefix", wanted)?;
    let seen = twins::seen(text);
    let Some((begin, end)) = window(&seen, begin, end)? else { return Ok(Value::from(false)) };
    let part = &seen[begin..end];
    let meets = |value: &Value| -> Result<bool, Error> {
        let wanted = twins::seen(string(method, value)?).into_owned();
        Ok(if method == "startswith" { part.starts_with(&wanted) } else { part.ends_with(&wanted) })
    };
    if !wanted.is_tuple() {
        return meets(&wanted).map(Value::from);
    }
    for value in wanted.try_iter()? {
        charge(part.len().min(value.len().unwrap_or(0)))?;
        if meets(&value)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn find(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [wanted, begin, end] = positional::<3>(method, args)?;
    let wanted = needed(method, "sub", wanted)?;
    let wanted = twins::seen(string(method, &wanted)?).into_owned();
    let seen = twins::seen(text);
    let window = window(&seen, begin, end)?;
    if method == "count" {
        let Some((begin, end)) = window else { return Ok(Value::from(0)) };
        let part = &seen[begin..end];
        let count = if wanted.is_empty() {
            part.chars().count() + 1
        } else {
            part.matches(&wanted).count()
        };
        return Ok(Value::from(count));
    }
    let found = window.and_then(|(begin, end)| {
        let part = &seen[begin..end];
        let at = if method.starts_with('r') { part.rfind(&wanted) } else { part.find(&wanted) };
        at.map(|at| seen[..begin + at].chars().count() as i64)
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(failure(format!("{method}: the text does not occur"))),
    }
}

fn split_lines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let [keep] = bind("splitlines", ["keepends"], args)?;
    strings(lines(text, flag(keep, false)))
}

pub fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(ch::is_line_end).unwrap_or(rest.len());
        let tail = &rest[end..];
        let size = if tail.starts_with("\r\n") {
            2
        } else {
            tail.chars().next().map_or(0, char::len_utf8)
        };
        found.push(&rest[..if keep_ends { end + size } else { end }]);
        rest = &rest[end + size..];
    }
    found
}

/// `text` between fills, `width` characters wide.
fn justify(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [width, fill] = positional::<2>(method, args)?;
    let width = integer(method, &needed(method, "width", width)?)?;
    let fill =
        fill.map_or(Ok(" ".to_string()), |fill| string(method, &fill).map(str::to_string))?;
    let mut characters = fill.chars();
    let (Some(fill), None) = (characters.next(), characters.next()) else {
        return Err(failure(format!("{method}: the fill must be one character")));
    };
    let length = text.chars().count();
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(length);
    charge(missing.saturating_mul(fill.len_utf8()))?;
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        _ => missing / 2 + (missing & width as usize & 1),
    };
    let side = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    Ok(Value::from(side(left) + text + &side(missing - left)))
}

fn fill_zeros(text: &str, args: &[Value]) -> Result<Value, Error> {
    let [width] = positional::<1>("zfill", args)?;
    let width = integer("zfill", &needed("zfill", "width", width)?)?;
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    charge(missing)?;
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    Ok(Value::from(format!("{sign}{}{digits}", "0".repeat(missing))))
}

fn expand_tabs(text: &str, args: &[Value]) -> Result<Value, Error> {
    let [size] = bind("expandtabs", ["tabsize"], args)?;
    let size = usize::try_from(integer_or("expandtabs", size, 8)?).unwrap_or(0);
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                charge(spaces)?;
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            _ => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(Value::from(out))
}

fn join(joiner: &str, args: &[Value]) -> Result<Value, Error> {
    let [items] = positional::<1>("join", args)?;
    let mut out = String::new();
    for (count, item) in needed("join", "items", items)?.try_iter()?.enumerate() {
        let item = string("join", &item)?.to_string();
        charge(item.len() + joiner.len() + 1)?;
        if count > 0 {
            out.push_str(joiner);
        }
        out.push_str(&item);
    }
    Ok(Value::from(out))
}

fn remove_affix(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [affix] = positional::<1>(method, args)?;
    let affix = needed(method, "affix", affix)?;
    let affix = twins::seen(string(method, &affix)?).into_owned();
    let searched = Searched::new(text)?;
    let seen = searched.seen();
    let size = seen.len();
    Ok(Value::from(match method {
        "removeprefix" if seen.starts_with(&affix) => searched.part(affix.len(), size),
        "removesuffix" if seen.ends_with(&affix) => searched.part(0, size - affix.len()),
        _ => text,
    }))
}

/// What needs no arguments.
fn simple(text: &str, method: &str) -> Option<Value> {
    let seen = twins::seen(text);
    let all = |is: fn(char) -> bool| Value::from(!seen.is_empty() && seen.chars().all(is));
    Some(match method {
        "upper" => Value::from(text.to_uppercase()),
        "lower" => Value::from(text.to_lowercase()),
        "title" => Value::from(ch::title(text)),
        "capitalize" => Value::from(ch::capitalize(text)),
        "swapcase" => Value::from(ch::swap_case(text)),
        "casefold" => Value::from(ch::fold_case(text)),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => Value::from(seen.is_ascii()),
        "isdecimal" => all(ch::is_decimal),
        "isdigit" => all(ch::is_digit),
        "isnumeric" => all(char::is_numeric),
        "isspace" => all(ch::is_space),
        "isidentifier" => Value::from(ch::is_identifier(&seen)),
        "islower" => Value::from(ch::all_of_case(&seen, char::is_lowercase)),
        "isupper" => Value::from(ch::all_of_case(&seen, char::is_uppercase)),
        "istitle" => Value::from(ch::is_title(&seen)),
        "isprintable" => Value::from(seen.chars().all(crate::repr::is_printable)),
        _ => return None,
    })
}

/// A method of str; None if there is none of this name.
pub fn of_str(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "split" => split(text, false, args)?,
        "rsplit" => split(text, true, args)?,
        "partition" => partition(text, false, args)?,
        "rpartition" => partition(text, true, args)?,
        "strip" | "lstrip" | "rstrip" => strip_method(text, method, args)?,
        "startswith" | "endswith" => starts_or_ends(text, method, args)?,
        "find" | "rfind" | "index" | "rindex" | "count" => find(text, method, args)?,
        "replace" => {
            let [from, to, count] = positional::<3>("replace", args)?;
            let (from, to) = (needed("replace", "old", from)?, needed("replace", "new", to)?);
            let count = integer_or("replace", count, -1)?;
            Value::from(replace(text, string("replace", &from)?, string("replace", &to)?, count)?)
        }
        "join" => join(text, args)?,
        "splitlines" => split_lines(text, args)?,
        "center" | "ljust" | "rjust" => justify(text, method, args)?,
        "zfill" => fill_zeros(text, args)?,
        "expandtabs" => expand_tabs(text, args)?,
        "removeprefix" | "removesuffix" => remove_affix(text, method, args)?,
        "format" => Value::from(formats::braces(text, args)?),
        "format_map" => {
            let [map] = positional::<1>("format_map", args)?;
            Value::from(formats::braces_of_map(text, &needed("format_map", "mapping", map)?)?)
        }
        _ if args.is_empty() => return Ok(simple(text, method)),
        _ if simple("", method).is_some() => {
            return Err(failure(format!("{method} takes no arguments")));
        }
        _ => return Ok(None),
    }))
}
