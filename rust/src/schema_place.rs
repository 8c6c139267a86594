//! Where the crate's error about a schema comes from; the error itself does not say.

use serde_json::{json, Value};

use crate::schema::{below, LISTS, MAPS, SCHEMAS};

/// Compiles of a schema that has failed, to find out where.
const TRIES_MAX: usize = 48;
const LOCATED_BYTES_MAX: usize = 16 << 10;

/// An error of the crate with its place: the smallest schema in `schema` that has it alone, and the
/// keywords of it without each of which it would be sound. `fails`: compiles a schema.
pub fn locate(
    schema: &Value,
    why: &str,
    fails: &mut dyn FnMut(&Value) -> Option<String>,
) -> Option<String> {
    let mut why = why.to_string();
    let limit = ["limit", "complex", "too large", "too many", "too big", "fuel"];
    if limit.iter().any(|word| why.to_lowercase().contains(word))
        || schema.to_string().len() > LOCATED_BYTES_MAX
    {
        return None;
    }
    let mut tries = 0;
    let mut fails = |schema: &Value| {
        tries += 1;
        (tries <= TRIES_MAX).then(|| fails(schema))
    };
    let mut pointer = String::new();
    'deeper: loop {
        for child in children(schema.pointer(&pointer)?, &pointer) {
            // Of a property that is required, it is told by name.
            let name = child.rsplit('/').next().map(|name| format!("required property '{name}'"));
            let named = name.is_some_and(|name| why.contains(&name));
            if let Some(cause) = fails(&alone(schema, &child))?.filter(|same| named || *same == why)
            {
                pointer = child;
                why = cause;
                continue 'deeper;
            }
        }
        break;
    }
    let mut culprits = vec![];
    for key in schema.pointer(&pointer)?.as_object()?.keys() {
        let mut without = schema.clone();
        without.pointer_mut(&pointer)?.as_object_mut()?.shift_remove(key);
        if key != "x-guidance" && fails(&alone(&without, &pointer))?.is_none() {
            culprits.push(format!("\"{key}\""));
        }
    }
    let at = format!("at #{pointer}");
    Some(match culprits.is_empty() {
        true => format!("{at}: {why}"),
        false => format!("{} {at}: {why}", culprits.join(" and ")),
    })
}

fn children(schema: &Value, pointer: &str) -> Vec<String> {
    let mut found = vec![];
    for (key, value) in schema.as_object().into_iter().flatten() {
        let here = below(pointer, key);
        match value {
            Value::Array(list) if LISTS.contains(&key.as_str()) => {
                found.extend((0..list.len()).map(|i| below(&here, &i.to_string())));
            }
            Value::Object(map) if MAPS.contains(&key.as_str()) => {
                found.extend(map.keys().map(|name| below(&here, name)));
            }
            _ if SCHEMAS.contains(&key.as_str()) => found.push(here),
            _ => (),
        }
    }
    found
}

/// The schema at `pointer`, with what it refers to.
fn alone(schema: &Value, pointer: &str) -> Value {
    if pointer.is_empty() {
        return schema.clone();
    }
    let mut whole = schema.clone();
    let id = whole["$id"].as_str().unwrap_or("urn:millrace:schema").to_string();
    whole["$id"] = json!(id);
    let fragment: String = pointer
        .bytes()
        .map(|byte| match byte {
            b'/' | b'~' | b'-' | b'_' | b'.' | b'$' => (byte as char).to_string(),
            byte if byte.is_ascii_alphanumeric() => (byte as char).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    let options = whole.as_object_mut().and_then(|whole| whole.shift_remove("x-guidance"));
    let mut alone = json!({"$defs": {"whole": whole}, "$ref": format!("{id}#{fragment}")});
    options.into_iter().for_each(|options| alone["x-guidance"] = options);
    alone
}
