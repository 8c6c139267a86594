//! Jinja2's filters of lists and dictionaries. Results are lists, never lazy iterables, which
//! could form chains.

use std::cmp::Ordering;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, State, Value};

use crate::arguments::{bind, flag, given, integer, integer_or, needed, split};
use crate::budget::{charge, charge_deep, collect, print, to_text, NODE_BYTES};
use crate::filters::failure;
use crate::objects::Group;
use crate::operators::add;
use crate::order::{charged_order, same, sort_by_key};
use crate::twins;

type Filter = Result<Value, Error>;

/// The items of anything that can be iterated over.
pub fn items(filter: &str, value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_none() {
        return Err(failure(format!("{filter} needs a list, got none")));
    }
    collect(value.try_iter()?)
}

/// One step of a path such as `city.name` or `tags.0`.
fn step(value: &Value, name: &str) -> Filter {
    if value.is_undefined() {
        return Err(failure(format!("an undefined value has no {name}")));
    }
    let by_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let key = match name.parse::<i64>() {
        Ok(index) if by_number => Value::from(index),
        _ => Value::from(name),
    };
    Ok(value.get_item(&key).unwrap_or_default())
}

/// What jinja2.filters.make_attrgetter makes.
pub struct Path {
    steps: Vec<String>,
    default: Option<Value>,
}

impl Path {
    pub fn new(attribute: &Value, default: Option<Value>) -> Result<Path, Error> {
        let text = to_text(attribute)?;
        Ok(Path { steps: text.split('.').map(str::to_string).collect(), default: given(default) })
    }

    pub fn get(&self, item: &Value) -> Filter {
        charge(1)?;
        let mut value = item.clone();
        for name in &self.steps {
            value = step(&value, name)?;
            if value.is_undefined() {
                value = self.default.clone().unwrap_or(value);
            }
        }
        Ok(value)
    }
}

fn path_of(attribute: Option<Value>) -> Result<Option<Path>, Error> {
    given(attribute).map(|attribute| Path::new(&attribute, None)).transpose()
}

/// A key to compare by: strings without case unless it counts.
fn key_of(value: Value, case_sensitive: bool) -> Filter {
    match value.as_str() {
        Some(text) if !case_sensitive => {
            charge(text.len())?;
            Ok(Value::from(twins::seen(text).to_lowercase()))
        }
        _ => Ok(value),
    }
}

fn keys(paths: &[Path], item: &Value, case_sensitive: bool) -> Result<Vec<Value>, Error> {
    if paths.is_empty() {
        return Ok(vec![key_of(item.clone(), case_sensitive)?]);
    }
    paths.iter().map(|path| key_of(path.get(item)?, case_sensitive)).collect()
}

pub fn sort(_: &mut State, args: &[Value]) -> Filter {
    let [value, reverse, case_sensitive, attribute] =
        bind("sort", ["value", "reverse", "case_sensitive", "attribute"], args)?;
    let case_sensitive = flag(case_sensitive, false);
    let paths = match given(attribute) {
        None => Vec::new(),
        Some(attribute) => {
            let names = to_text(&attribute)?;
            let names = names.split(',').map(|name| Path::new(&Value::from(name), None));
            names.collect::<Result<Vec<_>, _>>()?
        }
    };
    let items = items("sort", &value.unwrap_or_default())?;
    let sorted =
        sort_by_key(items, flag(reverse, false), |item| keys(&paths, item, case_sensitive))?;
    Ok(Value::from(sorted))
}

/// A value that can be a dictionary's key, so that equal values are found at once.
fn hashed(value: Value) -> Filter {
    match value.kind() {
        ValueKind::Bool => Ok(Value::from(i64::from(value.is_true()))),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(x) if x.fract() == 0.0 && x.abs() < 1e15 => Ok(Value::from(x as i64)),
            _ => Ok(value),
        },
        ValueKind::String => match twins::has_twins(value.as_str().unwrap_or("")) {
            true => Ok(Value::from(twins::seen(value.as_str().unwrap_or("")).as_ref())),
            false => Ok(value),
        },
        ValueKind::Seq if !value.is_tuple() => Err(failure("unique cannot compare lists")),
        ValueKind::Map => Err(failure("unique cannot compare dictionaries")),
        _ => Ok(value),
    }
}

pub fn unique(_: &mut State, args: &[Value]) -> Filter {
    let [value, case_sensitive, attribute] =
        bind("unique", ["value", "case_sensitive", "attribute"], args)?;
    let case_sensitive = flag(case_sensitive, false);
    let path = path_of(attribute)?;
    let mut seen = std::collections::HashSet::new();
    let mut kept = Vec::new();
    for item in items("unique", &value.unwrap_or_default())? {
        let key = path.as_ref().map_or(Ok(item.clone()), |path| path.get(&item))?;
        charge_deep(&key)?;
        if seen.insert(hashed(key_of(key, case_sensitive)?)?) {
            kept.push(item);
        }
    }
    Ok(Value::from(kept))
}

fn extreme(name: &str, wanted: Ordering, args: &[Value]) -> Filter {
    let [value, case_sensitive, attribute] =
        bind(name, ["value", "case_sensitive", "attribute"], args)?;
    let case_sensitive = flag(case_sensitive, false);
    let path = path_of(attribute)?;
    let mut best: Option<(Value, Value)> = None;
    for item in items(name, &value.unwrap_or_default())? {
        let key = path.as_ref().map_or(Ok(item.clone()), |path| path.get(&item))?;
        let key = key_of(key, case_sensitive)?;
        let better = match &best {
            None => true,
            Some((least, _)) => charged_order(&key, least)? == wanted,
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

pub fn min(_: &mut State, args: &[Value]) -> Filter {
    extreme("min", Ordering::Less, args)
}

pub fn max(_: &mut State, args: &[Value]) -> Filter {
    extreme("max", Ordering::Greater, args)
}

pub fn sum(_: &mut State, args: &[Value]) -> Filter {
    let [value, attribute, start] = bind("sum", ["iterable", "attribute", "start"], args)?;
    let path = path_of(attribute)?;
    let mut total = start.unwrap_or_else(|| Value::from(0));
    if total.as_str().is_some() {
        return Err(failure("sum does not add strings; use join"));
    }
    for item in items("sum", &value.unwrap_or_default())? {
        charge(1)?;
        let item = path.as_ref().map_or(Ok(item.clone()), |path| path.get(&item))?;
        total = add(&total, &item)?;
    }
    Ok(total)
}

pub fn groupby(_: &mut State, args: &[Value]) -> Filter {
    let [value, attribute, default, case_sensitive] =
        bind("groupby", ["value", "attribute", "default", "case_sensitive"], args)?;
    let case_sensitive = flag(case_sensitive, false);
    let path = Path::new(&needed("groupby", "attribute", attribute)?, default)?;
    let items = items("groupby", &value.unwrap_or_default())?;
    let sorted =
        sort_by_key(items, false, |item| Ok(vec![key_of(path.get(item)?, case_sensitive)?]))?;
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new(); // key, as shown, items
    for item in sorted {
        let shown = path.get(&item)?;
        let key = key_of(shown.clone(), case_sensitive)?;
        charge_deep(&key)?;
        match groups.last_mut() {
            Some((last, _, list)) if same(last, &key)? => list.push(item),
            _ => groups.push((key, shown, vec![item])),
        }
    }
    let mut made = Vec::new();
    for (_, grouper, list) in groups {
        charge(2 * NODE_BYTES)?;
        made.push(Value::from_object(Group { grouper, list: Value::from(list) }));
    }
    let made = Value::from(made);
    charge_deep(&made)?; // it nests deeper than what it was made of
    Ok(made)
}

pub fn batch(_: &mut State, args: &[Value]) -> Filter {
    let [value, count, fill] = bind("batch", ["value", "linecount", "fill_with"], args)?;
    let count = integer("batch", &needed("batch", "linecount", count)?)?;
    let value = value.unwrap_or_default();
    charge_deep(&value)?;
    let size = usize::try_from(count).ok().filter(|count| *count > 0);
    let size = size.ok_or_else(|| failure("batch needs a positive number of items"))?;
    let items = items("batch", &value)?;
    let mut batches = Vec::new();
    for part in items.chunks(size) {
        let mut part = part.to_vec();
        if let Some(fill) = given(fill.clone()) {
            charge((size - part.len()).saturating_mul(NODE_BYTES))?;
            charge_deep(&fill)?;
            part.resize(size, fill);
        }
        charge(NODE_BYTES)?;
        batches.push(Value::from(part));
    }
    Ok(Value::from(batches))
}

pub fn slice(_: &mut State, args: &[Value]) -> Filter {
    let [value, count, fill] = bind("slice", ["value", "slices", "fill_with"], args)?;
    let count = integer("slice", &needed("slice", "slices", count)?)?;
    let value = value.unwrap_or_default();
    charge_deep(&value)?;
    let count = usize::try_from(count).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| failure("slice needs a positive number of slices"))?;
    charge(count.saturating_mul(NODE_BYTES))?;
    let items = items("slice", &value)?;
    let (size, longer) = (items.len() / count, items.len() % count);
    let mut slices = Vec::new();
    let mut begin = 0;
    for number in 0..count {
        let end = begin + size + usize::from(number < longer);
        let mut part = items[begin..end].to_vec();
        begin = end;
        if let Some(fill) = given(fill.clone()).filter(|_| number >= longer) {
            charge_deep(&fill)?;
            part.push(fill);
        }
        slices.push(Value::from(part));
    }
    Ok(Value::from(slices))
}

fn pairs(filter: &str, value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    if value.kind() != ValueKind::Map {
        let kind = value.kind();
        return Err(failure(format!("{filter} needs a mapping, got a value of type {kind}")));
    }
    let mut pairs = Vec::new();
    for key in value.try_iter()? {
        charge(2 * NODE_BYTES)?;
        let item = value.get_item(&key)?;
        pairs.push((key, item));
    }
    Ok(pairs)
}

fn tuples(pairs: Vec<(Value, Value)>) -> Value {
    let tuples = pairs.into_iter().map(|(key, item)| Value::from(Tuple::from([key, item])));
    Value::from(tuples.collect::<Vec<_>>())
}

pub fn dictsort(_: &mut State, args: &[Value]) -> Filter {
    let [value, case_sensitive, by, reverse] =
        bind("dictsort", ["value", "case_sensitive", "by", "reverse"], args)?;
    let case_sensitive = flag(case_sensitive, false);
    let by = by.map_or(Ok("key".to_string()), |by| to_text(&by))?;
    let at = match by.as_str() {
        "key" => 0,
        "value" => 1,
        _ => return Err(failure("dictsort sorts by 'key' or by 'value'")),
    };
    let value = value.unwrap_or_default();
    charge_deep(&value)?;
    let items: Vec<Value> = tuples(pairs("dictsort", &value)?).try_iter()?.collect();
    let sorted = sort_by_key(items, flag(reverse, false), |pair| {
        Ok(vec![key_of(pair.get_item_by_index(at)?, case_sensitive)?])
    })?;
    Ok(Value::from(sorted))
}

pub fn items_filter(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("items", ["value"], args)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    pairs("items", &value).map(tuples)
}

pub fn first(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("first", ["seq"], args)?;
    let value = value.unwrap_or_default();
    if value.is_none() {
        return Err(failure("first needs a list, got none"));
    }
    let found = value.try_iter()?.next();
    Ok(found.unwrap_or_default())
}

pub fn last(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("last", ["seq"], args)?;
    let value = value.unwrap_or_default();
    if let Some(text) = value.as_str() {
        return Ok(text
            .chars()
            .next_back()
            .map(|c| Value::from(c.to_string()))
            .unwrap_or_default());
    }
    Ok(items("last", &value)?.pop().unwrap_or_default())
}

pub fn reverse(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("reverse", ["value"], args)?;
    let value = value.unwrap_or_default();
    if let Some(text) = value.as_str() {
        charge(text.len())?;
        return Ok(Value::from(text.chars().rev().collect::<String>()));
    }
    let mut items = items("reverse", &value)?;
    items.reverse();
    Ok(Value::from(items))
}

pub fn list(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("list", ["value"], args)?;
    items("list", &value.unwrap_or_default()).map(Value::from)
}

pub fn length(_: &mut State, args: &[Value]) -> Filter {
    let [value] = bind("length", ["obj"], args)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return Ok(Value::from(0));
    }
    let length = if value.is_none() { None } else { value.len() };
    length
        .map(Value::from)
        .ok_or_else(|| failure(format!("a value of type {} has no length", value.kind())))
}

pub fn join(_: &mut State, args: &[Value]) -> Filter {
    let [value, joiner, attribute] = bind("join", ["value", "d", "attribute"], args)?;
    let joiner = joiner.map_or(Ok(String::new()), |joiner| to_text(&joiner))?;
    let path = path_of(attribute)?;
    let mut out = String::new();
    for (count, item) in items("join", &value.unwrap_or_default())?.iter().enumerate() {
        if count > 0 {
            charge(joiner.len())?;
            out.push_str(&joiner);
        }
        charge(1)?;
        match &path {
            Some(path) => print(&path.get(item)?, &mut out)?,
            None => print(item, &mut out)?,
        }
    }
    Ok(Value::from(out))
}

/// `item | filter(...)` for each item, or an attribute of each.
pub fn map(state: &mut State, args: &[Value]) -> Filter {
    let (positional, kwargs) = split(args)?;
    let (value, rest) = positional.split_first().ok_or_else(|| failure("map needs a list"))?;
    let items = items("map", value)?;
    let has_attribute = kwargs.as_ref().is_some_and(|kwargs| kwargs.has("attribute"));
    let mut made = Vec::with_capacity(items.len());
    if let (true, true, Some(kwargs)) = (rest.is_empty(), has_attribute, kwargs) {
        let attribute: Value = kwargs.get("attribute")?;
        let default = kwargs.has("default").then(|| kwargs.get::<Value>("default"));
        kwargs.assert_all_used()?;
        let path = Path::new(&attribute, default.transpose()?)?;
        for item in &items {
            made.push(path.get(item)?);
        }
        return Ok(Value::from(made));
    }
    let (name, rest) = rest.split_first().ok_or_else(|| failure("map needs a filter's name"))?;
    let name = to_text(name)?;
    for item in items {
        charge(NODE_BYTES)?;
        let mut call = vec![item];
        call.extend_from_slice(rest);
        if args.last().is_some_and(Value::is_kwargs) {
            call.extend(args.last().cloned());
        }
        made.push(apply(state, &name, &call)?);
    }
    let made = Value::from(made);
    charge_deep(&made)?; // a filter may nest what it is given
    Ok(made)
}

fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

fn apply(state: &mut State, name: &str, args: &[Value]) -> Filter {
    let result = if is_name(name) {
        state.apply_filter(name, args)
    } else {
        Err(Error::from(minijinja::ErrorKind::UnknownFilter))
    };
    result.map_err(|error| match error.kind() {
        minijinja::ErrorKind::UnknownFilter => failure(format!("there is no filter {name:?}")),
        _ => error,
    })
}

/// The filters select, reject, selectattr and rejectattr.
fn choose(state: &mut State, args: &[Value], by_attribute: bool, wanted: bool) -> Filter {
    let (positional, kwargs) = split(args)?;
    let (value, mut rest) = positional.split_first().ok_or_else(|| failure("a list is needed"))?;
    let mut path = None;
    if by_attribute {
        let (attribute, others) =
            rest.split_first().ok_or_else(|| failure("the name of an attribute is needed"))?;
        path = Some(Path::new(attribute, None)?);
        rest = others;
    }
    let test = rest.split_first();
    let name = test.map(|(name, _)| to_text(name)).transpose()?;
    let mut kept = Vec::new();
    for item in items("select", value)? {
        charge(NODE_BYTES)?;
        let looked_at = path.as_ref().map_or(Ok(item.clone()), |path| path.get(&item))?;
        let meets = match (&name, test) {
            (Some(name), Some((_, others))) => {
                let mut call = vec![looked_at];
                call.extend_from_slice(others);
                call.extend(kwargs.as_ref().and(args.last()).cloned());
                perform(state, name, &call)?
            }
            _ => looked_at.is_true(),
        };
        if meets == wanted {
            kept.push(item);
        }
    }
    Ok(Value::from(kept))
}

fn perform(state: &mut State, name: &str, args: &[Value]) -> Result<bool, Error> {
    state.perform_test(name, args).map_err(|error| match error.kind() {
        minijinja::ErrorKind::UnknownTest => failure(format!("there is no test {name:?}")),
        _ => error,
    })
}

pub fn select(state: &mut State, args: &[Value]) -> Filter {
    choose(state, args, false, true)
}

pub fn reject(state: &mut State, args: &[Value]) -> Filter {
    choose(state, args, false, false)
}

pub fn selectattr(state: &mut State, args: &[Value]) -> Filter {
    choose(state, args, true, true)
}

pub fn rejectattr(state: &mut State, args: &[Value]) -> Filter {
    choose(state, args, true, false)
}

pub fn random(_: &mut State, args: &[Value]) -> Filter {
    let [_value] = bind("random", ["seq"], args)?;
    Err(failure("random is refused: a prompt must not depend on chance"))
}

pub fn integer_argument(filter: &str, value: Option<Value>, default: i64) -> Result<usize, Error> {
    let value = integer_or(filter, value, default)?;
    usize::try_from(value).map_err(|_| failure(format!("{filter} needs a length, got {value}")))
}
