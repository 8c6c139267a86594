//! Which alternatives of a schema exclude each other. The crate keeps "oneOf" only where it sees that
//! itself, and it does not follow references.

use std::collections::HashSet;

use serde_json::Value;

use crate::schema::DEFINITIONS;

/// Of references that are followed to see whether alternatives exclude each other.
const REFERENCES_MAX: usize = 16;
const DEPTH_MAX: usize = 4;

/// What a schema refers to within itself, other than from definitions that nothing refers to.
pub struct References<'a> {
    root: &'a Value,
    pointers: HashSet<String>,
    found: Vec<&'a Value>, // targets that are not read yet
    all: bool,             // it has references that are no pointers from its root
    pub ids: bool,         // it has names of its own, to which references may lead
}

impl<'a> References<'a> {
    pub fn new(root: &'a Value) -> References<'a> {
        let ids = root.to_string().contains("\"$id\"");
        let pointers = HashSet::new();
        let mut references = References { root, pointers, found: vec![], all: false, ids };
        references.of(root, false);
        // Chains of references may be long, so they are no recursion.
        while let Some(target) = references.found.pop() {
            references.of(target, true);
        }
        references
    }

    fn of(&mut self, value: &'a Value, inside: bool) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.of(item, true)),
            Value::Object(fields) => {
                self.all |= inside && fields.contains_key("$id");
                for (key, value) in fields {
                    match value.as_str().filter(|_| key == "$ref") {
                        Some(reference) => self.to(reference),
                        None if DEFINITIONS.contains(&key.as_str()) => (),
                        None => self.of(value, true),
                    }
                }
            }
            _ => (),
        }
    }

    fn to(&mut self, reference: &str) {
        let Some(pointer) = reference.strip_prefix('#') else {
            self.all = true;
            return;
        };
        self.all |= !pointer.is_empty() && !pointer.starts_with('/');
        if self.pointers.insert(reference.to_string()) {
            self.found.extend(self.root.pointer(pointer));
        }
    }

    pub fn reach(&self, place: &str) -> bool {
        self.all || self.pointers.iter().any(|pointer| pointer.starts_with(place))
    }

    /// What a chain of references leads to. A schema beside a reference is narrower than either, so
    /// one of them is enough to tell alternatives apart.
    fn resolved(&self, mut schema: &'a Value) -> Option<&'a Value> {
        for _ in 0..REFERENCES_MAX {
            match schema.get("$ref") {
                None => return Some(schema),
                Some(_) if self.all => return None,
                Some(reference) => {
                    schema = self.root.pointer(reference.as_str()?.strip_prefix('#')?)?;
                }
            }
        }
        None
    }
}

/// Makes "anyOf" of each "oneOf" whose alternatives exclude each other.
pub fn rewrite_alternatives(schema: &mut Value) {
    let root = schema.clone();
    Alternatives { references: References::new(&root) }.rewrite(schema, &root);
}

/// They exclude each other so far as their types and constants show.
struct Alternatives<'a> {
    references: References<'a>,
}

impl<'a> Alternatives<'a> {
    fn exclude_each_other(&self, alternatives: &'a Value) -> bool {
        let Some(list) = alternatives.as_array() else { return false };
        list.iter()
            .enumerate()
            .all(|(i, one)| list[i + 1..].iter().all(|other| self.exclude(one, other, DEPTH_MAX)))
    }

    fn exclude(&self, one: &'a Value, other: &'a Value, depth: usize) -> bool {
        let resolved = (self.references.resolved(one), self.references.resolved(other));
        let (Some(one), Some(other)) = resolved else { return false };
        if let (Some(one), Some(other)) = (types_of(one), types_of(other)) {
            if !one.iter().any(|name| other.contains(name)) {
                return true;
            }
        }
        if let (Some(one), Some(other)) = (constants_of(one), constants_of(other)) {
            return !one.iter().any(|value| other.iter().any(|there| same(value, there)));
        }
        let object = |schema: &Value| schema["type"] == "object";
        if depth == 0 || !(object(one) || object(other)) {
            return false;
        }
        let required = |schema: &Value, name: &str| {
            let names = schema["required"].as_array();
            names.is_some_and(|names| names.iter().any(|required| required == name))
        };
        let Some(properties) = one["properties"].as_object() else { return false };
        properties.iter().any(|(name, schema)| {
            let there = other["properties"].get(name);
            (required(one, name) || required(other, name))
                && there.is_some_and(|there| self.exclude(schema, there, depth - 1))
        })
    }

    /// `original`: the same schema, in the root that references lead into.
    fn rewrite(&self, schema: &mut Value, original: &'a Value) {
        match (schema, original) {
            (Value::Array(items), Value::Array(originals)) => {
                items.iter_mut().zip(originals).for_each(|(item, of)| self.rewrite(item, of));
            }
            (Value::Object(fields), Value::Object(originals)) => {
                for (key, of) in originals {
                    let value =
                        fields.get_mut(key).filter(|_| !["const", "enum"].contains(&key.as_str()));
                    value.into_iter().for_each(|value| self.rewrite(value, of));
                }
                let one_of = originals.get("oneOf").filter(|_| !originals.contains_key("anyOf"));
                if one_of.is_some_and(|one_of| self.exclude_each_other(one_of)) {
                    // In the same place, because the order is that of the answer.
                    let renamed = std::mem::take(fields).into_iter();
                    fields.extend(renamed.map(|(key, value)| match key.as_str() {
                        "oneOf" => ("anyOf".to_string(), value),
                        _ => (key, value),
                    }));
                }
            }
            _ => (),
        }
    }
}

/// Whether they are equal by the specification, where 1 is 1.0.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).is_some_and(|of| same(value, of)))
        }
        _ => one == other,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// None: any.
fn types_of(schema: &Value) -> Option<Vec<&str>> {
    let name = |value: &'_ Value| match value.as_str() {
        Some("integer") => Some("number"),
        Some("null") => Some("null"),
        Some("boolean") => Some("boolean"),
        Some("number") => Some("number"),
        Some("string") => Some("string"),
        Some("array") => Some("array"),
        Some("object") => Some("object"),
        _ => None,
    };
    match &schema["type"] {
        Value::Array(names) => names.iter().map(name).collect(),
        Value::String(_) => name(&schema["type"]).map(|name| vec![name]),
        _ => Some(constants_of(schema)?.into_iter().map(type_of).collect()),
    }
}

fn constants_of(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(values)) => Some(values.as_array()?.iter().collect()),
        (None, None) => None,
    }
}
