//! The chat-template handle: minijinja set up as Hugging Face sets up Jinja2, with every resource
//! bounded.

use std::cell::Cell;
use std::io::Write;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::filters::{self, failure};
use crate::strftime::strftime;
use crate::{enter, give_bytes, slice, text, Bytes, Failure};

const NAME: &str = "chat template";

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Limits {
    source_bytes_max: usize,
    output_bytes_max: usize,
    fuel: u64,
    recursion_max: usize,
}

pub struct TemplateHandle {
    environment: Environment<'static>,
    limits: Limits,
}

thread_local! {
    // What strftime_now shows; set for the length of one render.
    static CIVIL_SECONDS: Cell<i64> = const { Cell::new(0) };
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(failure(message))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    strftime(format, CIVIL_SECONDS.get())
        .ok_or_else(|| failure(format!("strftime_now does not know the format {format:?}")))
}

/// A writer that refuses to grow beyond its limit.
struct Bounded {
    bytes: Vec<u8>,
    bytes_max: usize,
    full: bool,
}

impl Write for &mut Bounded {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + data.len() > self.bytes_max {
            self.full = true;
            return Err(std::io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl TemplateHandle {
    fn new(source: &str, limits: Limits) -> Result<TemplateHandle, Failure> {
        if source.len() > limits.source_bytes_max {
            return Err(Failure::Limit(format!(
                "template of {} bytes is beyond the limit of {}",
                source.len(),
                limits.source_bytes_max
            )));
        }
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(Failure::invalid)?);
        environment.set_fuel(Some(limits.fuel));
        environment.set_recursion_limit(limits.recursion_max);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        let output_bytes_max = limits.output_bytes_max;
        environment.add_filter("tojson", move |value: &Value, kwargs: Kwargs| {
            filters::tojson(value, kwargs, output_bytes_max)
        });
        environment.add_filter("indent", filters::indent);
        environment
            .add_template_owned(NAME, source.to_string())
            .map_err(|error| Failure::invalid(one_line(&error)))?;
        Ok(TemplateHandle { environment, limits })
    }

    fn render(&self, context: &str, civil_seconds: i64) -> Result<Vec<u8>, Failure> {
        let context: serde_json::Value = serde_json::from_str(context).map_err(Failure::invalid)?;
        if !context.is_object() {
            return Err(Failure::invalid("the template's variables must be a JSON object"));
        }
        let template = self.environment.get_template(NAME).map_err(Failure::invalid)?;
        CIVIL_SECONDS.set(civil_seconds);
        let mut output =
            Bounded { bytes: Vec::new(), bytes_max: self.limits.output_bytes_max, full: false };
        let result =
            template.render_captured_to(Value::from(Serde(&context)), &mut output).map(|_| ());
        match result {
            Ok(()) => Ok(output.bytes),
            Err(_) if output.full => Err(Failure::Limit(format!(
                "the template writes more than {} bytes",
                self.limits.output_bytes_max
            ))),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => Err(Failure::Limit(format!(
                "the template runs for more than {} instructions",
                self.limits.fuel
            ))),
            Err(error) => Err(Failure::invalid(one_line(&error))),
        }
    }
}

/// What a template's author or a request's sender needs: the message, and the line.
fn one_line(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_string);
    match error.line() {
        Some(line) => format!("{detail} (chat template, line {line})"),
        None => detail,
    }
}

/// # Safety
/// Pointers are valid for their sizes; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn mrt_template_new(
    source: *const u8,
    source_size: usize,
    limits: Limits,
    out: *mut *mut TemplateHandle,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let handle = TemplateHandle::new(text(source, source_size)?, limits)?;
        out.write(Box::into_raw(Box::new(handle)));
        Ok(())
    })
}

/// # Safety
/// `template` came from mrt_template_new and is freed once.
#[no_mangle]
pub unsafe extern "C" fn mrt_template_free(template: *mut TemplateHandle) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

/// # Safety
/// `template` is a live handle; pointers are valid for their sizes.
#[no_mangle]
pub unsafe extern "C" fn mrt_template_render(
    template: *const TemplateHandle,
    context: *const u8,
    context_size: usize,
    civil_seconds: i64,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let context =
            std::str::from_utf8(slice(context, context_size)).map_err(Failure::invalid)?;
        give_bytes(out, (*template).render(context, civil_seconds)?);
        Ok(())
    })
}
