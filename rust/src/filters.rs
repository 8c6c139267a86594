//! Registers the filters of Jinja2. Each charges the work budget before it works.

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{filters, Environment, Error, ErrorKind, State, Value};

use crate::arguments::{bind, flag, given, integer, string};
use crate::budget::{charge, charge_deep, charge_shallow};
use crate::json_out::{to_json, JsonStyle};
use crate::{lists, numbers, texts, wrap};

const INDENT_MAX: i64 = 64;
const JSON_DEPTH_MAX: usize = 64;

type Filter = fn(&mut State, &[Value]) -> Result<Value, Error>;
type Charge = fn(&Value) -> Result<(), Error>;

pub fn failure(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Spaces, or the text itself.
fn indention(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        if text.len() > INDENT_MAX as usize {
            return Err(failure(format!("an indent must have at most {INDENT_MAX} bytes")));
        }
        return Ok(text.to_string());
    }
    let width = integer("an indent", value)?;
    if width > INDENT_MAX {
        return Err(failure(format!("an indent must be at most {INDENT_MAX}, got {width}")));
    }
    Ok(" ".repeat(usize::try_from(width).unwrap_or(0)))
}

/// json.dumps(value, ensure_ascii, indent, separators, sort_keys), as transformers defines tojson.
fn tojson(args: &[Value], bytes_max: usize) -> Result<Value, Error> {
    let [value, ascii, indent, separators, sort_keys] =
        bind("tojson", ["x", "ensure_ascii", "indent", "separators", "sort_keys"], args)?;
    let indent = given(indent).map(|indent| indention(&indent)).transpose()?;
    let (item_separator, key_separator) = match given(separators) {
        Some(pair) => {
            let texts: Vec<Value> = pair.try_iter()?.collect();
            let [item, key] = texts.as_slice() else {
                return Err(failure("tojson's separators must be two strings"));
            };
            (string("tojson", item)?.to_string(), string("tojson", key)?.to_string())
        }
        None if indent.is_some() => (",".to_string(), ": ".to_string()),
        None => (", ".to_string(), ": ".to_string()),
    };
    let style = JsonStyle {
        indent,
        ascii: flag(ascii, false),
        item_separator,
        key_separator,
        sort_keys: flag(sort_keys, false),
    };
    let text = to_json(&value.unwrap_or_default(), &style, bytes_max, JSON_DEPTH_MAX)?;
    charge(text.len())?;
    Ok(Value::from(text))
}

/// Jinja2's indent: blank lines are indented only on request.
fn indent(_: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bind("indent", ["s", "width", "first", "blank"], args)?;
    let value = value.unwrap_or_default();
    let text = string("indent", &value)?;
    let indention = width.map_or(Ok(" ".repeat(4)), |width| indention(&width))?;
    let (first, blank) = (flag(first, false), flag(blank, false));
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
    Ok(Value::from(out))
}

fn add(environment: &mut Environment<'static>, charge: Charge, name: &'static str, filter: Filter) {
    environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args: Vec<Value> = args.0.into_iter().map(Value::from).collect();
        args.iter().try_for_each(charge)?;
        filter(state, &args)
    });
}

const SHALLOW: [(&str, Filter); 38] = [
    ("attr", texts::attr),
    ("batch", lists::batch),
    ("capitalize", texts::capitalize),
    ("center", texts::center),
    ("count", lists::length),
    ("d", texts::default),
    ("default", texts::default),
    ("dictsort", lists::dictsort),
    ("e", texts::escape),
    ("escape", texts::escape),
    ("first", lists::first),
    ("float", numbers::float),
    ("forceescape", texts::escape),
    ("indent", indent),
    ("int", numbers::int),
    ("items", lists::items_filter),
    ("join", lists::join),
    ("last", lists::last),
    ("length", lists::length),
    ("list", lists::list),
    ("lower", texts::lower),
    ("map", lists::map),
    ("random", lists::random),
    ("reject", lists::reject),
    ("rejectattr", lists::rejectattr),
    ("replace", texts::replace),
    ("reverse", lists::reverse),
    ("safe", texts::safe),
    ("select", lists::select),
    ("selectattr", lists::selectattr),
    ("slice", lists::slice),
    ("string", texts::string),
    ("striptags", texts::striptags),
    ("sum", lists::sum),
    ("title", texts::title),
    ("trim", texts::trim),
    ("truncate", texts::truncate),
    ("upper", texts::upper),
];

const DEEP: [(&str, Filter); 12] = [
    ("abs", numbers::abs),
    ("filesizeformat", texts::filesizeformat),
    ("format", texts::format),
    ("groupby", lists::groupby),
    ("max", lists::max),
    ("min", lists::min),
    ("pprint", texts::pprint),
    ("sort", lists::sort),
    ("unique", lists::unique),
    ("urlencode", texts::urlencode),
    ("wordcount", texts::wordcount),
    ("xmlattr", texts::xmlattr),
];

pub fn register(environment: &mut Environment<'static>, output_bytes_max: usize) {
    for name in ["bool", "chain", "lines", "split", "zip"] {
        environment.remove_filter(name); // Jinja2 has none of them
    }
    for (name, filter) in SHALLOW {
        add(environment, charge_shallow, name, filter);
    }
    for (name, filter) in DEEP {
        add(environment, charge_deep, name, filter);
    }
    add(environment, charge_deep, "wordwrap", wrap::wordwrap);
    environment.add_filter("round", filters::round);
    environment.add_filter("tojson", move |args: Rest<ValueOrKwargs>| {
        let args: Vec<Value> = args.0.into_iter().map(Value::from).collect();
        tojson(&args, output_bytes_max)
    });
}
