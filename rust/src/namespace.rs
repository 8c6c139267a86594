//! `namespace()` and `{% set ns.name = value %}`, which let a template change a value after it was
//! made. minijinja's own namespaces can hold each other in chains and rings, which are freed,
//! compared and printed by recursion. These are opaque to everything but `.name`, and one list
//! holds all of a render until its end, so that none is freed inside another.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use minijinja::value::{Kwargs, Object, ObjectRepr, ValueKind};
use minijinja::{Environment, Error, State, Value};

use crate::budget::{charge, charge_deep, refuse_loop};
use crate::filters::failure;

/// What a namespace costs, in bytes of the work budget: it lives until the render ends.
const NAMESPACE_BYTES: usize = 256;

#[derive(Default)]
struct Namespace {
    values: Mutex<BTreeMap<String, Value>>,
}

impl Namespace {
    fn set(&self, name: &str, value: Value) {
        let old = {
            let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
            values.insert(name.to_string(), value)
        };
        drop(old); // without the lock
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("<Namespace>")
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.get(key.as_str()?).cloned()
    }
}

thread_local! {
    static LIVE: RefCell<Vec<Arc<Namespace>>> = const { RefCell::new(Vec::new()) };
}

/// Empties the namespaces of one render when it goes.
pub struct Lifetime;

impl Lifetime {
    pub fn begin() -> Lifetime {
        Lifetime
    }
}

impl Drop for Lifetime {
    fn drop(&mut self) {
        let live = LIVE.take();
        for namespace in &live {
            let values = std::mem::take(
                &mut *namespace.values.lock().unwrap_or_else(PoisonError::into_inner),
            );
            drop(values); // `live` still holds every namespace among them
        }
    }
}

fn namespace(first: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    charge(NAMESPACE_BYTES)?;
    let made = Arc::new(Namespace::default());
    for (key, value) in pairs(first)? {
        let Some(name) = key.as_str() else {
            return Err(failure("the names in a namespace are strings"));
        };
        assign(&made, name, value)?;
    }
    for name in kwargs.args() {
        assign(&made, name, kwargs.peek(name)?)?;
    }
    LIVE.with_borrow_mut(|live| live.push(made.clone()));
    Ok(Value::from_dyn_object(made))
}

fn assign(namespace: &Namespace, name: &str, value: Value) -> Result<(), Error> {
    refuse_loop(&value)?;
    namespace.set(name, value);
    Ok(())
}

/// The members of a map, or of a list of pairs.
fn pairs(values: Option<Value>) -> Result<Vec<(Value, Value)>, Error> {
    let Some(values) = values else { return Ok(Vec::new()) };
    let mut pairs = Vec::new();
    for item in values.try_iter()? {
        charge(NAMESPACE_BYTES)?;
        if values.kind() == ValueKind::Map {
            let value = values.get_item(&item)?;
            pairs.push((item, value));
        } else if item.len() == Some(2) && item.kind() == ValueKind::Seq {
            pairs.push((item.get_item_by_index(0)?, item.get_item_by_index(1)?));
        } else {
            return Err(failure("a dictionary is made of pairs"));
        }
    }
    Ok(pairs)
}

fn dict(first: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    first.iter().try_for_each(charge_deep)?;
    let mut made = IndexMap::<Value, Value>::new();
    made.extend(pairs(first)?);
    for name in kwargs.args() {
        let value: Value = kwargs.peek(name)?;
        charge_deep(&value)?;
        made.insert(Value::from(name), value);
    }
    Ok(Value::from_object(made))
}

pub fn register(environment: &mut Environment<'static>) {
    environment.add_function("namespace", namespace);
    environment.add_function("dict", dict);
}

/// The filter of the compiled `{% set variable.name = value %}`: gives the value to the namespace.
pub fn register_assignment(
    environment: &mut Environment<'static>,
    filter: &str,
    variable: &'static str,
    name: &'static str,
) {
    environment.add_filter(filter.to_string(), move |state: &mut State, value: Value| {
        let target = state.lookup(variable).unwrap_or_default();
        match target.downcast_object_ref::<Namespace>() {
            Some(namespace) => assign(namespace, name, value),
            None => Err(failure(format!(
                "{{% set {variable}.{name} %}} assigns to a namespace, not to a value of type {}",
                target.kind()
            ))),
        }
    });
}
