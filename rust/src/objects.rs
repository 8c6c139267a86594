//! Values of Jinja2 and Python that minijinja does not have: methods as values, cycler, joiner,
//! and the groups of groupby. None can hold another in a chain deeper than a value may nest:
//! charge_deep counts what they hold.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::arguments::{bind, given};
use crate::budget::{charge_deep, to_text};
use crate::filters::failure;
use crate::methods;

/// `value.name`, not yet called.
pub struct Method {
    value: Value,
    name: &'static str,
}

impl fmt::Debug for Method {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "<built-in method {}>", self.name)
    }
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        methods::call(state, &self.value, self.name, args)
    }
}

/// `value.name` if it is a method of Python's types.
pub fn method(value: &Value, name: &'static str) -> Result<Option<Value>, Error> {
    if !methods::has(value, name) {
        return Ok(None);
    }
    charge_deep(value)?;
    Ok(Some(Value::from_object(Method { value: value.clone(), name })))
}

#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = self.at.load(Ordering::Relaxed);
        (key.as_str() == Some("current")).then(|| self.items[at].clone())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        _args: &[Value],
    ) -> Result<Value, Error> {
        let at = self.at.load(Ordering::Relaxed);
        match method {
            "next" => {
                self.at.store((at + 1) % self.items.len(), Ordering::Relaxed);
                Ok(self.items[at].clone())
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

fn cycler(items: Rest<Value>) -> Result<Value, Error> {
    items.iter().try_for_each(charge_deep)?;
    if items.is_empty() {
        return Err(failure("cycler needs at least one item"));
    }
    Ok(Value::from_object(Cycler { items: items.0, at: AtomicUsize::new(0) }))
}

#[derive(Debug)]
struct Joiner {
    separator: String,
    calls: AtomicUsize,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &mut State<'_, '_>, _: &[Value]) -> Result<Value, Error> {
        let first = self.calls.swap(1, Ordering::Relaxed) == 0;
        Ok(Value::from(if first { "" } else { self.separator.as_str() }))
    }
}

fn joiner(args: Rest<minijinja::value::ValueOrKwargs>) -> Result<Value, Error> {
    let args: Vec<Value> = args.0.into_iter().map(Value::from).collect();
    let [separator] = bind("joiner", ["sep"], &args)?;
    let separator = given(separator).map_or(Ok(", ".to_string()), |value| to_text(&value))?;
    Ok(Value::from_object(Joiner { separator, calls: AtomicUsize::new(0) }))
}

/// One group of groupby: a pair that also has names.
#[derive(Debug)]
pub struct Group {
    pub grouper: Value,
    pub list: Value,
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_str(), key.as_usize()) {
            (Some("grouper"), _) | (_, Some(0)) => Some(self.grouper.clone()),
            (Some("list"), _) | (_, Some(1)) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

/// What the methods keys, values and items give.
#[derive(Debug)]
struct View {
    name: &'static str,
    items: Vec<Value>,
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }
}

pub fn view(method: &str, items: Vec<Value>) -> Value {
    let name = match method {
        "keys" => "dict_keys",
        "values" => "dict_values",
        _ => "dict_items",
    };
    Value::from_object(View { name, items })
}

pub fn is_view(value: &Value) -> bool {
    value.downcast_object_ref::<View>().is_some()
}

/// How a value of this file is shown.
pub enum Shown {
    Text(String),
    Tuple(Vec<Value>),
    View(&'static str, Vec<Value>),
}

pub fn shown(value: &Value) -> Option<Shown> {
    if let Some(method) = value.downcast_object_ref::<Method>() {
        return Some(Shown::Text(format!("{method:?}")));
    }
    if let Some(view) = value.downcast_object_ref::<View>() {
        return Some(Shown::View(view.name, view.items.clone()));
    }
    let group = value.downcast_object_ref::<Group>()?;
    Some(Shown::Tuple(vec![group.grouper.clone(), group.list.clone()]))
}

/// What a value of this file holds without showing it as an item.
pub fn held(value: &Value) -> &[Value] {
    if let Some(method) = value.downcast_object_ref::<Method>() {
        return std::slice::from_ref(&method.value);
    }
    value.downcast_object_ref::<Cycler>().map_or(&[], |cycler| &cycler.items)
}

pub fn is_callable(value: &Value) -> bool {
    if value.is_undefined() {
        return true; // as Jinja2's Undefined, which has a __call__ that fails
    }
    let Some(object) = value.as_object() else { return false };
    value.kind() != ValueKind::Seq
        && ["::Macro", "::Method", "::Joiner", "::BoxedFunction", "::Loop"]
            .iter()
            .any(|name| object.type_name().ends_with(name))
}

pub fn register(environment: &mut Environment<'static>) {
    environment.add_function("cycler", cycler);
    environment.add_function("joiner", joiner);
}
