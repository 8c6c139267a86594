//! Jinja2's filters of numbers, and how Python reads numbers.

use minijinja::value::ValueKind;
use minijinja::{filters, Error, State, Value};

use crate::arguments::{bind, integer_or};
use crate::characters as ch;
use crate::filters::failure;

type Filter = Result<Value, Error>;

fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(ch::is_space);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixed = |letter: char| {
        digits
            .strip_prefix('0')
            .and_then(|rest| rest.strip_prefix([letter, letter.to_ascii_uppercase()]))
    };
    let (base, digits) = match base {
        2 => (2, prefixed('b').unwrap_or(digits)),
        8 => (8, prefixed('o').unwrap_or(digits)),
        16 => (16, prefixed('x').unwrap_or(digits)),
        0 => [('b', 2), ('o', 8), ('x', 16)]
            .iter()
            .find_map(|(letter, base)| prefixed(*letter).map(|rest| (*base, rest)))
            .or_else(|| {
                let padded = digits.len() > 1
                    && digits.starts_with('0')
                    && !digits.trim_matches('0').is_empty();
                (!padded).then_some((10, digits))
            })?,
        _ => (base, digits),
    };
    let digits = digits.strip_prefix('_').filter(|_| base != 10).unwrap_or(digits);
    let well_formed = !digits.is_empty()
        && !digits.starts_with(['_', '+', '-'])
        && !digits.ends_with('_')
        && !digits.contains("__");
    let plain: String = digits.chars().filter(|c| *c != '_').collect();
    i128::from_str_radix(&plain, base).ok().filter(|_| well_formed).map(|number| sign * number)
}

fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(ch::is_space);
    let well_formed = !text.is_empty()
        && text.chars().enumerate().all(|(at, c)| {
            let digit = |at: Option<usize>| {
                at.and_then(|at| text.as_bytes().get(at)).is_some_and(u8::is_ascii_digit)
            };
            c != '_' || (digit(at.checked_sub(1)) && digit(Some(at + 1)))
        });
    if !well_formed {
        return None;
    }
    let plain = text.replace('_', "");
    let word = plain.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let known = matches!(word.as_str(), "inf" | "infinity" | "nan")
        || word.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    plain.parse().ok().filter(|_| known)
}

fn whole(x: f64) -> Option<Value> {
    // Beyond this a float is not cut to an integer exactly by a cast.
    (x.is_finite() && x.abs() < 1e38).then(|| {
        let cut = x.trunc() as i128;
        i64::try_from(cut).map_or_else(|_| Value::from(cut), Value::from)
    })
}

pub fn int(_: &mut State, args: &[Value]) -> Filter {
    let [value, default, base] = bind("int", ["value", "default", "base"], args)?;
    let value = value.unwrap_or_default();
    let default = default.unwrap_or_else(|| Value::from(0));
    let base = integer_or("int", base, 10)?;
    let base = u32::try_from(base).ok().filter(|base| *base == 0 || (2..=36).contains(base));
    let base = base.ok_or_else(|| failure("int needs a base of 0 or 2 to 36"))?;
    let made = match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or("");
            let parsed = parse_int(text, base);
            let parsed =
                parsed.map(|n| i64::try_from(n).map_or_else(|_| Value::from(n), Value::from));
            parsed.or_else(|| parse_float(text).and_then(whole))
        }
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Some(value),
        ValueKind::Number => f64::try_from(value).ok().and_then(whole),
        _ => None,
    };
    Ok(made.unwrap_or(default))
}

pub fn float(_: &mut State, args: &[Value]) -> Filter {
    let [value, default] = bind("float", ["value", "default"], args)?;
    let value = value.unwrap_or_default();
    let made = match value.kind() {
        ValueKind::String => parse_float(value.as_str().unwrap_or("")),
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value).ok(),
        _ => None,
    };
    Ok(made.map(Value::from).unwrap_or_else(|| default.unwrap_or_else(|| Value::from(0.0))))
}

pub fn abs(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("abs", ["x"], args)?;
    let value = value.unwrap_or_default();
    if value.kind() == ValueKind::Bool {
        return Ok(Value::from(i64::from(value.is_true())));
    }
    filters::abs(value)
}
