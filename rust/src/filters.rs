//! Jinja2's filters, for those that minijinja implements differently or without a size limit.

use minijinja::value::{Kwargs, Rest};
use minijinja::{filters, Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use crate::budget::{charge, charge_deep, charge_shallow, eager, print, to_text};
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
    let text = to_json(value, &style, bytes_max, JSON_DEPTH_MAX)?;
    charge(text.len())?;
    Ok(Value::from(text))
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
    let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
    charge(text.len() + lines * indention.len())?;
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

/// Python's str.replace, and Jinja2's filter of the same name.
fn replace(text: &str, from: &str, to: &str, count: Option<i64>) -> Result<String, Error> {
    charge(text.len())?;
    let count = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let matches = text.matches(from).take(count).count();
    charge(matches.saturating_mul(to.len()))?;
    Ok(text.replacen(from, to, count))
}

fn replace_filter(
    value: &Value,
    from: &str,
    to: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    replace(&to_text(value)?, from, to, count)
}

fn join_values(items: &Value, joiner: &str, attribute: Option<&str>) -> Result<String, Error> {
    let mut out = String::new();
    for (i, item) in items.try_iter()?.enumerate() {
        if i > 0 {
            charge(joiner.len())?;
            out.push_str(joiner);
        }
        charge(1)?;
        match attribute {
            Some(name) => print(&item.get_attr(name)?, &mut out)?,
            None => print(&item, &mut out)?,
        }
    }
    Ok(out)
}

fn join(items: &Value, joiner: Option<&str>, kwargs: Kwargs) -> Result<String, Error> {
    let joiner = joiner.or(kwargs.get("d")?).unwrap_or("");
    let attribute: Option<&str> = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    join_values(items, joiner, attribute)
}

/// A format string can widen a field to any width; more than three digits are refused.
fn check_format(format: &str) -> Result<(), Error> {
    let digits = format.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
    if digits > 3 || format.contains("%*") || format.contains(".*") {
        return Err(failure("a format string must not ask for widths beyond 999"));
    }
    Ok(())
}

fn sum(items: &Value, start: Option<Value>) -> Result<Value, Error> {
    let mut total = start.unwrap_or_else(|| Value::from(0));
    for item in items.try_iter()? {
        charge(1)?;
        if !item.is_number() {
            return Err(failure("sum adds numbers only"));
        }
        total = crate::operators::add(&total, &item)?;
    }
    Ok(total)
}

/// Methods of Python's str, list and dict. Each charges for its object and its arguments.
pub fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    charge_shallow(value)?;
    args.iter().try_for_each(charge_shallow)?;
    match (value.as_str(), method, args) {
        (Some(text), "replace", [from, to, rest @ ..]) => {
            let (Some(from), Some(to)) = (from.as_str(), to.as_str()) else {
                return Err(failure("replace needs two strings"));
            };
            let count = rest.first().and_then(Value::as_i64);
            return replace(text, from, to, count).map(Value::from);
        }
        (Some(joiner), "join", [items]) => {
            return join_values(items, joiner, None).map(Value::from);
        }
        (Some(format), "format", _) => {
            check_format(format)?;
            args.iter().try_for_each(charge_deep)?;
        }
        _ => {}
    }
    pycompat::unknown_method_callback(state, value, method, args).and_then(eager)
}

/// Registers `original` under a name that no template can write, and under `name` a filter that
/// first charges for its arguments and then returns lists instead of lazy iterables.
macro_rules! paying {
    ($environment:ident, $charge:path, $($name:literal => $original:path),* $(,)?) => {
        $(
            $environment.add_filter(concat!("!", $name), $original);
            $environment.add_filter($name, |state: &mut State, args: Rest<Value>| {
                args.iter().try_for_each($charge)?;
                state.apply_filter(concat!("!", $name), &args).and_then(eager)
            });
        )*
    };
}

pub fn register(environment: &mut Environment<'static>, output_bytes_max: usize) {
    for name in ["chain", "zip", "lines", "pprint"] {
        environment.remove_filter(name); // differs from Jinja2's
    }
    environment.add_filter("tojson", move |value: &Value, kwargs: Kwargs| {
        tojson(value, kwargs, output_bytes_max)
    });
    environment.add_filter("indent", indent);
    environment.add_filter("replace", replace_filter);
    environment.add_filter("join", join);
    environment.add_filter("string", |value: &Value| to_text(value));
    environment.add_filter("sum", sum);
    environment.add_filter("!format", filters::format);
    environment.add_filter("format", |state: &mut State, args: Rest<Value>| {
        check_format(args.first().and_then(Value::as_str).unwrap_or(""))?;
        args.iter().try_for_each(charge_deep)?;
        state.apply_filter("!format", &args)
    });
    paying!(environment, charge_shallow,
        "upper" => filters::upper, "lower" => filters::lower, "title" => filters::title,
        "capitalize" => filters::capitalize, "trim" => filters::trim, "list" => filters::list,
        "split" => filters::split, "reverse" => filters::reverse, "items" => filters::items,
        "first" => filters::first, "last" => filters::last,
        "select" => filters::select, "reject" => filters::reject, "map" => filters::map,
        "selectattr" => filters::selectattr, "rejectattr" => filters::rejectattr,
        "escape" => filters::escape, "e" => filters::escape,
    );
    paying!(environment, charge_deep,
        "sort" => filters::sort, "unique" => filters::unique, "groupby" => filters::groupby,
        "dictsort" => filters::dictsort, "min" => filters::min, "max" => filters::max,
    );
    for name in ["batch", "slice"] {
        environment.add_filter(name, move |state: &mut State, args: Rest<Value>| {
            args.iter().try_for_each(charge_deep)?; // the result nests deeper than they do
            charge(args.get(1).and_then(Value::as_usize).unwrap_or(0).saturating_mul(32))?;
            state.apply_filter(&format!("!{name}"), &args)
        });
    }
    environment.add_filter("!batch", filters::batch);
    environment.add_filter("!slice", filters::slice);
}
