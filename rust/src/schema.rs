//! JSON schemas before the crate compiles them. It knows some keywords by name only, tells no place
//! in its errors, and keeps numbers as floating point. What it cannot keep is refused here by
//! keyword and place; what has no effect is removed; what means the same in other words is
//! rewritten.

use anyhow::{anyhow, bail, ensure};
use serde_json::{json, Map, Value};

use crate::grammar::escaped;
use crate::schema_alternatives::{rewrite_alternatives, References};

/// The formats that the crate constrains. By the specification any other is an annotation.
const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Keywords whose value is a schema, a list of them, or an object of them.
pub const SCHEMAS: &[&str] = &[
    "items",
    "additionalItems",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];
pub const LISTS: &[&str] = &["allOf", "anyOf", "oneOf", "prefixItems", "items"];
pub const MAPS: &[&str] = &["properties", "patternProperties", "$defs", "definitions"];
pub const DEFINITIONS: &[&str] = &["$defs", "definitions"];

/// Without an effect of their own.
const ANNOTATIONS: &[&str] = &[
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$vocabulary",
    "contentSchema",
    "deprecated",
    "discriminator",
];

/// What the grammars have no way to keep.
const NOT_KEPT: &[&str] = &[
    "not",
    "if",
    "contains",
    "uniqueItems",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];

const APPLICATORS: &[&str] =
    &["allOf", "anyOf", "oneOf", "if", "$ref", "$dynamicRef", "$recursiveRef", "dependentSchemas"];

const COUNTS: &[&str] =
    &["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];
const BOUNDS: &[&str] = &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

/// Prepares a schema for the crate. If its options say `lenient`, what cannot be kept stays, and is
/// ignored.
pub fn prepare(schema: &mut Value) -> anyhow::Result<()> {
    let lenient = schema["x-guidance"]["lenient"] == Value::Bool(true);
    let root = schema.clone();
    let references = References::new(&root);
    Preparation { references, lenient }.schema(schema, "#", false)?;
    rewrite_alternatives(schema);
    Ok(())
}

struct Preparation<'a> {
    references: References<'a>,
    lenient: bool,
}

/// A JSON pointer to what is below `place`.
pub fn below(place: &str, key: &str) -> String {
    format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Whether every value matches.
fn is_open(schema: &Value) -> bool {
    *schema == Value::Bool(true) || schema.as_object().is_some_and(Map::is_empty)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        _ => false,
    }
}

impl<'a> Preparation<'a> {
    /// `unused`: whether it is of no consequence that something cannot be kept.
    fn schema(&self, schema: &mut Value, place: &str, unused: bool) -> anyhow::Result<()> {
        let Some(object) = schema.as_object_mut() else {
            ensure!(unused || schema.is_boolean(), "{place} must be an object, true or false");
            return Ok(());
        };
        if !unused {
            check_types(object, place)?;
            check_constants(object, place)?;
        }
        simplify(object);
        if !unused && !self.lenient {
            refuse(object, place)?;
        }
        let reference = object.get("$ref").and_then(Value::as_str).filter(|_| !unused);
        if let Some(other) = reference.filter(|to| !to.starts_with('#') && !self.references.ids) {
            bail!("\"$ref\" at {place} leads to another document, {other:?}; none is fetched");
        }
        round_bounds(object);
        for (key, value) in object.iter_mut() {
            let here = below(place, key);
            match value {
                Value::Array(list) if LISTS.contains(&key.as_str()) => {
                    for (i, item) in list.iter_mut().enumerate() {
                        self.schema(item, &below(&here, &i.to_string()), unused)?;
                    }
                }
                Value::Object(map) if MAPS.contains(&key.as_str()) => {
                    let defines = DEFINITIONS.contains(&key.as_str());
                    for (name, item) in map.iter_mut() {
                        let here = below(&here, name);
                        let unused = unused || (defines && !self.references.reach(&here));
                        self.schema(item, &here, unused)?;
                    }
                }
                _ if SCHEMAS.contains(&key.as_str()) => self.schema(value, &here, unused)?,
                _ => (),
            }
        }
        Ok(())
    }
}

fn refuse(object: &Map<String, Value>, place: &str) -> anyhow::Result<()> {
    if object.get("not").is_some_and(is_open) {
        bail!("\"not\" at {place} leaves no value");
    }
    for &key in NOT_KEPT {
        ensure!(!object.contains_key(key), "\"{key}\" at {place} cannot be constrained");
    }
    check_least_properties(object, place)
}

/// Removes what has no effect on which values are valid, and says the rest in words that the crate
/// knows.
fn simplify(object: &mut Map<String, Value>) {
    let has = |object: &Map<String, Value>, key: &str| object.contains_key(key);
    let empty = |object: &Map<String, Value>, key: &str| object.get(key).is_some_and(is_empty);
    let open = |object: &Map<String, Value>, key: &str| object.get(key).is_some_and(is_open);
    let known = object.get("format").and_then(Value::as_str).map(|name| FORMATS.contains(&name));
    let few = object.get("maxItems").and_then(Value::as_u64).is_some_and(|most| most <= 1);
    let counts_none = object.get("minContains") == Some(&json!(0)) && !has(object, "maxContains");
    let conditional = has(object, "if") && (has(object, "then") || has(object, "else"));
    let no_effect = |object: &Map<String, Value>, key: &str| match key {
        "format" => known == Some(false),
        "uniqueItems" => few || object["uniqueItems"] == Value::Bool(false),
        "not" => object["not"] == Value::Bool(false),
        "if" | "then" | "else" => !conditional,
        "contains" => counts_none,
        "minContains" | "maxContains" => counts_none || !has(object, "contains"),
        "dependentRequired" | "dependentSchemas" | "dependencies" => empty(object, key),
        "propertyNames" => open(object, key) || object[key] == json!({"type": "string"}),
        "unevaluatedProperties" => open(object, key) || has(object, "additionalProperties"),
        "unevaluatedItems" => open(object, key) || object.get("items").is_some_and(is_schema),
        _ => ANNOTATIONS.contains(&key),
    };
    let removed: Vec<String> =
        object.keys().filter(|key| no_effect(object, key)).cloned().collect();
    removed.iter().for_each(|key| drop(object.shift_remove(key)));
    if !APPLICATORS.iter().any(|key| object.contains_key(*key)) {
        rename(object, "unevaluatedProperties", "additionalProperties");
        if !has(object, "items") {
            rename(object, "unevaluatedItems", "items");
        }
    }
    name_by_pattern(object);
    if let Some(Value::String(pattern)) = object.get_mut("pattern") {
        *pattern = plain_classes(pattern);
    }
    if let Some(Value::Object(map)) = object.get_mut("patternProperties") {
        *map = map.iter().map(|(name, item)| (plain_classes(name), item.clone())).collect();
    }
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

fn rename(object: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = object.shift_remove(from) {
        object.insert(to.to_string(), value);
    }
}

/// Names of properties that are listed or match a pattern, if nothing else speaks of names.
fn name_by_pattern(object: &mut Map<String, Value>) {
    let others = ["properties", "patternProperties", "required"];
    if others.iter().chain(APPLICATORS).any(|key| object.contains_key(*key)) {
        return;
    }
    let Some(names) = object.get("propertyNames").and_then(Value::as_object) else { return };
    let text = ["type", "title", "description", "enum", "pattern"];
    if !names.keys().all(|key| text.contains(&key.as_str()))
        || names.get("type").is_some_and(|name| name != "string")
    {
        return;
    }
    let pattern = match (names.get("enum"), names.get("pattern")) {
        (Some(Value::Array(list)), None) => {
            let list: Option<Vec<String>> =
                list.iter().map(|s| Some(escaped(s.as_str()?))).collect();
            list.map(|list| format!("^(?:{})$", list.join("|")))
        }
        (None, Some(Value::String(pattern))) => Some(pattern.clone()),
        _ => None,
    };
    let Some(pattern) = pattern else { return };
    let values = object.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    object.shift_remove("propertyNames");
    object.insert("patternProperties".to_string(), json!({pattern: values}));
    object.insert("additionalProperties".to_string(), Value::Bool(false));
}

/// The crate counts a free name that comes twice as two properties.
fn check_least_properties(object: &Map<String, Value>, place: &str) -> anyhow::Result<()> {
    let least = object.get("minProperties").and_then(Value::as_u64).unwrap_or(0) as usize;
    let required = object.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    ensure!(
        least <= required.max(1),
        "\"minProperties\" at {place} cannot be {least} with {required} names in \"required\": \
         a free name that comes twice would count as two; list more names in \"required\""
    );
    Ok(())
}

/// A pattern of ECMAScript, where the set notation of Rust's classes is plain characters.
fn plain_classes(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut in_class = false;
    let mut before = None; // the character of the class that comes before, if it is plain
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c == '\\' {
            out.push(c);
            out.extend(chars.next());
            before = None;
            continue;
        }
        if in_class && (c == '[' || ("&-~".contains(c) && before == Some(c))) {
            out.push('\\');
        }
        out.push(c);
        before = in_class.then_some(c);
        in_class = if in_class { c != ']' } else { c == '[' };
    }
    out
}

fn check_types(object: &mut Map<String, Value>, place: &str) -> anyhow::Result<()> {
    for &key in COUNTS {
        let Some(value) = object.get_mut(key) else { continue };
        let whole =
            value.as_f64().filter(|count| count.fract() == 0.0 && (0.0..1e15).contains(count));
        if let (None, Some(count)) = (value.as_u64(), whole) {
            *value = json!(count as u64);
        }
        ensure!(value.is_u64(), "\"{key}\" at {place} must be a count, got {}", shown(value));
    }
    for &key in BOUNDS.iter().chain(&["multipleOf"]) {
        let Some(value) = object.get(key) else { continue };
        let flag = value.is_boolean() && key.starts_with("exclusive"); // draft 4
        let number = value.is_number() || flag;
        ensure!(number, "\"{key}\" at {place} must be a number, got {}", shown(value));
    }
    if let Some(divisor) = object.get("multipleOf").and_then(Value::as_f64) {
        ensure!(divisor > 0.0, "\"multipleOf\" at {place} must be above 0, got {divisor}");
    }
    for key in ["pattern", "format", "$ref", "$id", "$schema"] {
        let Some(value) = object.get(key) else { continue };
        ensure!(value.is_string(), "\"{key}\" at {place} must be a string, got {}", shown(value));
    }
    for key in ["required", "enum", "allOf", "anyOf", "oneOf", "prefixItems"] {
        let Some(value) = object.get(key) else { continue };
        ensure!(value.is_array(), "\"{key}\" at {place} must be a list, got {}", shown(value));
    }
    if let Some(Value::Array(names)) = object.get("required") {
        let texts = names.iter().all(Value::is_string);
        ensure!(texts, "\"required\" at {place} must be a list of names");
    }
    for key in MAPS {
        let Some(value) = object.get(*key) else { continue };
        ensure!(value.is_object(), "\"{key}\" at {place} must be an object, got {}", shown(value));
    }
    let Some(types) = object.get("type") else { return Ok(()) };
    let known = ["null", "boolean", "integer", "number", "string", "array", "object"];
    let names = types.as_array().map_or(std::slice::from_ref(types), Vec::as_slice);
    let sound = names.iter().all(|name| name.as_str().is_some_and(|name| known.contains(&name)));
    ensure!(
        sound && !names.is_empty(),
        "\"type\" at {place} must be of {}, got {}",
        known.join(", "),
        shown(types)
    );
    Ok(())
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        None => text,
        Some((size, _)) => format!("{}...", &text[..size]),
    }
}

/// As floating point, inwards; and integers within what the crate takes.
fn round_bounds(object: &mut Map<String, Value>) {
    const MOST: f64 = 9_223_372_036_854_774_784.0; // of floating point below 2^63
    let integer = object.get("type").is_some_and(|name| name == "integer");
    for &key in BOUNDS {
        let Some(Value::Number(number)) = object.get(key) else { continue };
        let upper = key.ends_with("aximum");
        let beyond =
            number.as_f64().filter(|&bound| if upper { bound > MOST } else { bound < -MOST });
        if integer && beyond.is_some() {
            object.insert(key.to_string(), json!(if upper { MOST } else { -MOST }));
            continue;
        }
        let exact = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
        let Some(exact) = exact else { continue };
        let near = exact as f64;
        let outside = if upper { near as i128 > exact } else { (near as i128) < exact };
        if outside {
            let inside = if upper { near.next_down() } else { near.next_up() };
            object.insert(key.to_string(), json!(inside));
        }
    }
}

fn check_constants(object: &Map<String, Value>, place: &str) -> anyhow::Result<()> {
    ["const", "enum"].iter().try_for_each(|key| match object.get(*key) {
        Some(value) => check_numbers(value, key, place),
        None => Ok(()),
    })
}

/// Numbers that are listed have to be written as they are.
fn check_numbers(value: &Value, key: &str, place: &str) -> anyhow::Result<()> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| check_numbers(item, key, place)),
        Value::Object(map) => map.values().try_for_each(|item| check_numbers(item, key, place)),
        Value::Number(number) => {
            let exact = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
            match exact {
                Some(exact) if exact as f64 as i128 != exact => Err(anyhow!(
                    "\"{key}\" at {place} cannot be constrained to {number}: it has more digits \
                     than floating point keeps; use a string"
                )),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}
