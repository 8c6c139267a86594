//! Methods of Python's str, list, tuple, dict, int and float. Those that change a list or a
//! dictionary are refused, as the immutable sandbox of transformers refuses them.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use crate::arguments::{needed, positional};
use crate::budget::{charge, charge_deep, charge_shallow, collect, NODE_BYTES};
use crate::filters::failure;
use crate::objects::view;
use crate::order::same;
use crate::strings::of_str;

const STR: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const DICT: &[&str] = &[
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];
const LIST: &[&str] = &[
    "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse",
    "sort",
];
const TUPLE: &[&str] = &["count", "index"];
const UNSAFE: &[&str] = &[
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
];

/// The names of all methods, each after a dot: what the compiler pass calls instead of getting an
/// attribute of the name.
pub const DOTTED: &[&str] = &[
    ".append",
    ".capitalize",
    ".casefold",
    ".center",
    ".clear",
    ".copy",
    ".count",
    ".encode",
    ".endswith",
    ".expandtabs",
    ".extend",
    ".find",
    ".format",
    ".format_map",
    ".fromkeys",
    ".get",
    ".index",
    ".insert",
    ".isalnum",
    ".isalpha",
    ".isascii",
    ".isdecimal",
    ".isdigit",
    ".isidentifier",
    ".islower",
    ".isnumeric",
    ".isprintable",
    ".isspace",
    ".istitle",
    ".isupper",
    ".items",
    ".join",
    ".keys",
    ".ljust",
    ".lower",
    ".lstrip",
    ".partition",
    ".pop",
    ".popitem",
    ".remove",
    ".removeprefix",
    ".removesuffix",
    ".replace",
    ".reverse",
    ".rfind",
    ".rindex",
    ".rjust",
    ".rpartition",
    ".rsplit",
    ".rstrip",
    ".setdefault",
    ".sort",
    ".split",
    ".splitlines",
    ".startswith",
    ".strip",
    ".swapcase",
    ".title",
    ".translate",
    ".update",
    ".upper",
    ".values",
    ".zfill",
];

fn names(value: &Value) -> &'static [&'static str] {
    match value.kind() {
        ValueKind::String => STR,
        ValueKind::Map if !value.is_kwargs() => DICT,
        ValueKind::Seq if value.is_tuple() => TUPLE,
        ValueKind::Seq => LIST,
        _ => &[],
    }
}

/// Its entry in DOTTED.
pub fn dotted(name: &str) -> Option<&'static str> {
    DOTTED.iter().find(|dotted| &dotted[1..] == name).copied()
}

/// The name of a method of any type.
pub fn known(name: &str) -> Option<&'static str> {
    dotted(name).map(|dotted| &dotted[1..])
}

/// Whether `value.name` is a method that a template may call.
pub fn has(value: &Value, name: &str) -> bool {
    names(value).contains(&name) && (value.kind() == ValueKind::String || !UNSAFE.contains(&name))
}

/// Each call charges for its object and its arguments.
pub fn call(
    _state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    charge_shallow(value)?;
    args.iter().try_for_each(charge_shallow)?;
    let made = match value.kind() {
        ValueKind::String => of_str(value.as_str().unwrap_or(""), method, args)?,
        ValueKind::Map if !value.is_kwargs() => of_dict(value, method, args)?,
        ValueKind::Seq => of_list(value, method, args)?,
        ValueKind::Number | ValueKind::Bool => of_number(value, method)?,
        _ => None,
    };
    made.ok_or_else(|| {
        if names(value).contains(&method) {
            return failure(format!("a template must not call {method} of a {}", value.kind()));
        }
        Error::from(ErrorKind::UnknownMethod)
    })
}

fn of_number(value: &Value, method: &str) -> Result<Option<Value>, Error> {
    Ok(match method {
        "is_integer" => {
            let number = f64::try_from(value.clone())?;
            Some(Value::from(value.is_integer() || number.fract() == 0.0))
        }
        "bit_length" if value.is_integer() => {
            let magnitude = i128::try_from(value.clone())?.unsigned_abs();
            Some(Value::from(128 - magnitude.leading_zeros()))
        }
        _ => None,
    })
}

fn of_dict(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let pair = |key: Value| -> Result<Value, Error> {
        charge(NODE_BYTES)?;
        let item = value.get_item(&key)?;
        Ok(Value::from(Tuple::from([key, item])))
    };
    Ok(Some(match method {
        "get" => {
            let [key, default] = positional::<2>("get", args)?;
            let key = needed("get", "key", key)?;
            let found = value.get_item(&key)?;
            if found.is_undefined() {
                default.unwrap_or_else(|| Value::from(()))
            } else {
                found
            }
        }
        "items" | "keys" | "values" | "copy" => {
            positional::<0>(method, args)?;
            match method {
                "items" => {
                    view(method, value.try_iter()?.map(pair).collect::<Result<Vec<_>, _>>()?)
                }
                "keys" => view(method, collect(value.try_iter()?)?),
                "values" => {
                    charge(NODE_BYTES * value.len().unwrap_or(0))?;
                    let values = value.try_iter()?.map(|key| value.get_item(&key));
                    view(method, values.collect::<Result<Vec<_>, _>>()?)
                }
                _ => value.clone(),
            }
        }
        _ => return Ok(None),
    }))
}

fn of_list(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "index" | "count" => {
            args.iter().try_for_each(charge_deep)?;
            charge_deep(value)?;
            let [wanted] = positional::<1>(method, args)?;
            let wanted = needed(method, "value", wanted)?;
            let mut places = Vec::new();
            for (place, item) in value.try_iter()?.enumerate() {
                if same(&item, &wanted)? {
                    places.push(place);
                }
            }
            match places.first() {
                _ if method == "count" => Value::from(places.len()),
                Some(place) => Value::from(*place),
                None => return Err(failure("index: the value is not in the list")),
            }
        }
        "copy" if !value.is_tuple() => value.clone(),
        _ => return Ok(None),
    }))
}
