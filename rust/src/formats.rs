//! Python's two ways to format: `'%d' % x` and `'{:d}'.format(x)`.

use std::iter::Peekable;
use std::str::Chars;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use crate::arguments::split;
use crate::budget::{charge, charge_deep, to_text};
use crate::filters::failure;
use crate::json_out::{number, Floats};
use crate::repr::push_repr;

/// A format string can widen a field to any width; more than three digits are refused.
const WIDTH_MAX: usize = 999;

struct Spec {
    fill: char,
    align: Option<char>, // < > = ^
    sign: char,          // - + or space
    alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    fn new() -> Spec {
        Spec {
            fill: ' ',
            align: None,
            sign: '-',
            alternate: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: None,
        }
    }
}

fn repr(value: &Value) -> Result<String, Error> {
    charge_deep(value)?;
    let mut out = String::new();
    push_repr(&mut out, value)?;
    Ok(out)
}

fn read_number(chars: &mut Peekable<Chars>) -> Result<Option<usize>, Error> {
    let mut read = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        let value = read.unwrap_or(0) * 10 + digit as usize;
        if value > WIDTH_MAX {
            return Err(failure(format!(
                "a format string must not ask for widths beyond {WIDTH_MAX}"
            )));
        }
        read = Some(value);
        chars.next();
    }
    Ok(read)
}

fn pad(sign: &str, body: &str, spec: &Spec, default_align: char) -> String {
    let length = sign.chars().count() + body.chars().count();
    let missing = spec.width.saturating_sub(length);
    let fill = |count: usize| std::iter::repeat_n(spec.fill, count).collect::<String>();
    match spec.align.unwrap_or(default_align) {
        '<' => format!("{sign}{body}{}", fill(missing)),
        '^' => format!("{}{sign}{body}{}", fill(missing / 2), fill(missing - missing / 2)),
        '=' => format!("{sign}{}{body}", fill(missing)),
        _ => format!("{}{sign}{body}", fill(missing)),
    }
}

/// With a separator between groups of digits before the point.
fn grouped(digits: &str, separator: char, size: usize) -> String {
    let whole = digits.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(digits.len());
    let mut out = String::new();
    for (at, c) in digits[..whole].chars().enumerate() {
        if at > 0 && (whole - at) % size == 0 {
            out.push(separator);
        }
        out.push(c);
    }
    out + &digits[whole..]
}

fn scientific(x: f64, precision: usize) -> String {
    let text = format!("{x:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// %g: the shorter of two notations.
fn general(x: f64, precision: usize, keep_zeros: bool) -> String {
    let precision = precision.max(1);
    let text = format!("{x:.*e}", precision - 1);
    let exponent: i32 = text.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let fixed = exponent >= -4 && exponent < precision as i32;
    let text = if fixed {
        let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
        format!("{x:.decimals$}")
    } else {
        scientific(x, precision - 1)
    };
    if keep_zeros || !text.contains('.') {
        return text;
    }
    let (digits, exponent) = text.split_once('e').map_or((&*text, None), |(d, e)| (d, Some(e)));
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    exponent.map_or(digits.to_string(), |exponent| format!("{digits}e{exponent}"))
}

fn float_digits(x: f64, spec: &Spec) -> Result<String, Error> {
    if !x.is_finite() {
        return Ok(if x.is_nan() { "nan" } else { "inf" }.to_string());
    }
    let precision = spec.precision.unwrap_or(6);
    let text = match spec.kind {
        Some('f' | 'F') => format!("{x:.precision$}"),
        Some('e' | 'E') => scientific(x, precision),
        Some('g' | 'G' | 'n') => general(x, precision, spec.alternate),
        Some('%') => format!("{:.precision$}%", x * 100.0),
        None if spec.precision.is_some() => {
            let text = general(x, precision, false);
            if text.contains(['.', 'e']) {
                text
            } else {
                text + ".0"
            }
        }
        None => number(&Value::from(x), Floats::Python),
        Some(kind) => return Err(failure(format!("format {kind:?} does not go with a float"))),
    };
    Ok(if matches!(spec.kind, Some('E' | 'G')) { text.to_uppercase() } else { text })
}

fn sign_of(negative: bool, spec: &Spec) -> &'static str {
    match spec.sign {
        _ if negative => "-",
        '+' => "+",
        ' ' => " ",
        _ => "",
    }
}

fn format_float(x: f64, spec: &Spec) -> Result<String, Error> {
    let mut digits = float_digits(x.abs(), spec)?;
    if let Some(separator) = spec.grouping {
        digits = grouped(&digits, separator, 3);
    }
    Ok(pad(sign_of(x.is_sign_negative() && !x.is_nan(), spec), &digits, spec, '>'))
}

fn format_int(value: &Value, spec: &Spec) -> Result<String, Error> {
    let kind = spec.kind.unwrap_or('d');
    if matches!(kind, 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') {
        return format_float(f64::try_from(value.clone())?, spec);
    }
    let x = i128::try_from(value.clone())
        .map_err(|_| failure("a number is too large to be formatted"))?;
    if kind == 'c' {
        let c = u32::try_from(x).ok().and_then(char::from_u32);
        let c = c.ok_or_else(|| failure("format 'c' needs a character's number"))?;
        return Ok(pad("", &c.to_string(), spec, '<'));
    }
    let magnitude = x.unsigned_abs();
    let (prefix, mut digits) = match kind {
        'd' | 'n' | 'i' | 'u' => ("", magnitude.to_string()),
        'b' => ("0b", format!("{magnitude:b}")),
        'o' => ("0o", format!("{magnitude:o}")),
        'x' => ("0x", format!("{magnitude:x}")),
        'X' => ("0X", format!("{magnitude:X}")),
        _ => return Err(failure(format!("format {kind:?} does not go with an integer"))),
    };
    if let Some(separator) = spec.grouping {
        digits = grouped(&digits, separator, if prefix.is_empty() { 3 } else { 4 });
    }
    let sign = sign_of(x < 0, spec).to_string() + if spec.alternate { prefix } else { "" };
    Ok(pad(&sign, &digits, spec, '>'))
}

fn format_str(text: &str, spec: &Spec) -> Result<String, Error> {
    if !matches!(spec.kind, None | Some('s')) || spec.align == Some('=') {
        return Err(failure("this format does not go with a string"));
    }
    let cut: String = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
    Ok(pad("", &cut, spec, '<'))
}

fn parse_spec(text: &str) -> Result<Spec, Error> {
    let mut spec = Spec::new();
    let is_align = |c: Option<&char>| c.is_some_and(|c| "<>=^".contains(*c));
    let characters: Vec<char> = text.chars().collect();
    let mut chars = text.chars().peekable();
    if is_align(characters.get(1)) {
        spec.fill = characters[0];
        spec.align = Some(characters[1]);
        chars.nth(1);
    } else if is_align(characters.first()) {
        spec.align = chars.next();
    }
    if let Some(sign) = chars.next_if(|c| "+- ".contains(*c)) {
        spec.sign = sign;
    }
    spec.alternate = chars.next_if_eq(&'#').is_some();
    if chars.next_if_eq(&'0').is_some() && spec.align.is_none() {
        spec.fill = '0';
        spec.align = Some('=');
    }
    spec.width = read_number(&mut chars)?.unwrap_or(0);
    spec.grouping = chars.next_if(|c| ",_".contains(*c));
    if chars.next_if_eq(&'.').is_some() {
        let precision = read_number(&mut chars)?;
        spec.precision = Some(precision.ok_or_else(|| failure("a format lacks its precision"))?);
    }
    spec.kind = chars.next();
    if chars.next().is_some() {
        return Err(failure(format!("{text:?} is no format")));
    }
    Ok(spec)
}

fn format_value(value: &Value, text: &str) -> Result<String, Error> {
    if text.is_empty() {
        return to_text(value);
    }
    let mut spec = parse_spec(text)?;
    match value.kind() {
        ValueKind::String => {
            if spec.align == Some('=') && spec.fill == '0' {
                spec.align = Some('<');
            }
            format_str(value.as_str().unwrap_or(""), &spec)
        }
        ValueKind::Bool => format_int(&Value::from(i64::from(value.is_true())), &spec),
        ValueKind::Number if value.is_integer() => format_int(value, &spec),
        ValueKind::Number => format_float(f64::try_from(value.clone())?, &spec),
        kind => Err(failure(format!("a value of type {kind} has no format {text:?}"))),
    }
}

/// The arguments of one format call.
struct Fields<'a> {
    positional: &'a [Value],
    named: Option<&'a Value>, // a map
    next: usize,
}

impl Fields<'_> {
    fn first(&mut self, name: &str) -> Result<Value, Error> {
        if name.is_empty() || name.bytes().all(|byte| byte.is_ascii_digit()) {
            let at = if name.is_empty() { self.next } else { name.parse().unwrap_or(usize::MAX) };
            self.next += usize::from(name.is_empty());
            let value = self.positional.get(at).cloned();
            return value.ok_or_else(|| failure(format!("format has no argument {at}")));
        }
        let value = self.named.map(|map| map.get_item(&Value::from(name))).transpose()?;
        let value = value.filter(|value| !value.is_undefined());
        value.ok_or_else(|| failure(format!("format has no argument {name}")))
    }

    /// `name`, `name.attribute` or `name[index]`.
    fn get(&mut self, path: &str) -> Result<Value, Error> {
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let mut value = self.first(&path[..end])?;
        let mut rest = &path[end..];
        while !rest.is_empty() {
            let wrong = || failure(format!("{path:?} is no field of a format"));
            let inner = if let Some(tail) = rest.strip_prefix('[') {
                let (inner, tail) = tail.split_once(']').ok_or_else(wrong)?;
                rest = tail;
                inner
            } else {
                let tail = rest.strip_prefix('.').ok_or_else(wrong)?;
                let end = tail.find(['.', '[']).unwrap_or(tail.len());
                rest = &tail[end..];
                &tail[..end]
            };
            let index = inner.parse::<i64>().map_or_else(|_| Value::from(inner), Value::from);
            value = value.get_item(&index)?;
            if value.is_undefined() {
                return Err(failure(format!("a format's argument has no {inner:?}")));
            }
        }
        Ok(value)
    }

    /// What a pair of braces holds: `name!conversion:spec`.
    fn field(&mut self, text: &str) -> Result<String, Error> {
        let (name, spec) = text.split_once(':').unwrap_or((text, ""));
        let (name, conversion) = name.split_once('!').unwrap_or((name, ""));
        let mut value = self.get(name)?;
        value = match conversion {
            "" => value,
            "s" => Value::from(to_text(&value)?),
            "r" => Value::from(repr(&value)?),
            _ => return Err(failure(format!("a format has no conversion {conversion:?}"))),
        };
        let spec = if spec.contains('{') { self.expand(spec, false)? } else { spec.to_string() };
        format_value(&value, &spec)
    }

    fn expand(&mut self, format: &str, may_nest: bool) -> Result<String, Error> {
        let mut out = String::new();
        let mut rest = format;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let brace = &rest[at..at + 1];
            rest = &rest[at + 1..];
            if let Some(tail) = rest.strip_prefix(brace) {
                out.push_str(brace);
                rest = tail;
                continue;
            }
            let end = (brace == "{").then(|| end_of_field(rest)).flatten();
            let end = end.ok_or_else(|| failure("a format has a single brace"))?;
            if !may_nest && rest[..end].contains('{') {
                return Err(failure("a format nests too deeply"));
            }
            let made = self.field(&rest[..end])?;
            charge(made.len() + 1)?;
            out.push_str(&made);
            rest = &rest[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }
}

fn end_of_field(text: &str) -> Option<usize> {
    let mut open = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' if open == 0 => return Some(at),
            b'}' => open -= 1,
            _ => {}
        }
    }
    None
}

/// str.format.
pub fn braces(format: &str, args: &[Value]) -> Result<String, Error> {
    args.iter().try_for_each(charge_deep)?;
    let (positional, kwargs) = split(args)?;
    let named = kwargs.and(args.last());
    Fields { positional, named, next: 0 }.expand(format, true)
}

/// str.format_map.
pub fn braces_of_map(format: &str, map: &Value) -> Result<String, Error> {
    charge_deep(map)?;
    Fields { positional: &[], named: Some(map), next: 0 }.expand(format, true)
}

/// One conversion of the % operator.
fn percent_value(value: &Value, spec: &mut Spec, kind: char) -> Result<String, Error> {
    spec.kind = Some(kind);
    match kind {
        's' | 'r' | 'a' => {
            spec.kind = None;
            spec.fill = ' ';
            let text = if kind == 's' { to_text(value)? } else { repr(value)? };
            let align = spec.align.filter(|align| *align == '<').unwrap_or('>');
            spec.align = Some(align);
            format_str(&text, spec)
        }
        'c' if value.as_str().is_some_and(|text| text.chars().count() == 1) => {
            Ok(pad("", value.as_str().unwrap_or(""), spec, '>'))
        }
        _ => {
            let value = if value.kind() == ValueKind::Bool {
                Value::from(i64::from(value.is_true()))
            } else {
                value.clone()
            };
            if value.kind() != ValueKind::Number {
                return Err(failure(format!(
                    "%{kind} needs a number, got a value of type {}",
                    value.kind()
                )));
            }
            let x = f64::try_from(value.clone()).unwrap_or(f64::MAX);
            match kind {
                'd' | 'i' | 'u' if !value.is_integer() => {
                    format_int(&Value::from(x.trunc() as i128), spec)
                }
                'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'c' => format_int(&value, spec),
                'e' | 'E' | 'f' | 'F' | 'g' | 'G' => format_float(x, spec),
                _ => Err(failure(format!("%{kind} is no format"))),
            }
        }
    }
}

/// `format % values`; `values` is a tuple, a map, or one value.
pub fn percent(format: &str, values: &Value) -> Result<String, Error> {
    charge(format.len())?;
    charge_deep(values)?;
    let items: Vec<Value> =
        if values.is_tuple() { values.try_iter()?.collect() } else { vec![values.clone()] };
    let by_name = matches!(values.kind(), ValueKind::Map);
    let mut items = items.into_iter();
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    let ends = || failure("a format ends within a conversion");
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        if chars.next_if_eq(&'%').is_some() {
            out.push('%');
            continue;
        }
        let mut named = None;
        if chars.next_if_eq(&'(').is_some() {
            let name: String = chars.by_ref().take_while(|c| *c != ')').collect();
            if !by_name {
                return Err(failure("a format with names needs a mapping"));
            }
            let value = values.get_item(&Value::from(name.as_str()))?;
            if value.is_undefined() {
                return Err(failure(format!("format has no argument {name}")));
            }
            named = Some(value);
        }
        let mut spec = Spec::new();
        while let Some(option) = chars.next_if(|c| "#0- +".contains(*c)) {
            match option {
                '#' => spec.alternate = true,
                '0' if spec.align.is_none() => (spec.fill, spec.align) = ('0', Some('=')),
                '-' => (spec.fill, spec.align) = (' ', Some('<')),
                '+' => spec.sign = '+',
                ' ' if spec.sign == '-' => spec.sign = ' ',
                _ => {}
            }
        }
        spec.width = read_number(&mut chars)?.unwrap_or(0);
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(read_number(&mut chars)?.unwrap_or(0));
        }
        let kind = chars.next().ok_or_else(ends)?;
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match named {
            Some(value) => value,
            None => items.next().ok_or_else(|| failure("a format has too few arguments"))?,
        };
        let made = percent_value(&value, &mut spec, kind)?;
        charge(made.len() + 1)?;
        out.push_str(&made);
    }
    // A list or a map may be passed for nothing, as in Python.
    let only = !values.is_tuple() && matches!(values.kind(), ValueKind::Map | ValueKind::Seq);
    if items.next().is_some() && !only {
        return Err(failure("a format has too many arguments"));
    }
    Ok(out)
}
