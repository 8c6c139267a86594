//! The chat-template handle: minijinja set up as Hugging Face sets up Jinja2, with every resource
//! bounded.

use std::cell::Cell;
use std::collections::BTreeMap;

use minijinja::machinery::{eval, make_string_output, parse, CodeGenerator, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};

use crate::filters::{self, failure};
use crate::strftime::strftime;
use crate::{
    budget, constants, generation, jinja_tests, literals, methods, namespace, nesting, objects,
    operators, program, twins,
};
use crate::{enter, give_bytes, slice, text, Bytes, Failure};

const NAME: &str = "chat template";
// Literal text that one render may copy.
const LITERAL_BYTES_MAX: u64 = 256 << 20;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Limits {
    source_bytes_max: usize,
    output_bytes_max: usize,
    fuel: u64,
    recursion_max: usize,
    work_bytes_max: usize,
}

type Blocks = BTreeMap<&'static str, Instructions<'static>>;

/// The compiled program borrows the texts; fields drop in order, the texts last.
pub struct TemplateHandle {
    instructions: Instructions<'static>,
    blocks: Blocks,
    environment: Environment<'static>,
    limits: Limits,
    _names: Vec<Text>, // of filters
    _source: Text,
}

/// A text at an address that stays, freed with the handle.
struct Text(*mut str);

// The text is only read, and only through the handle that owns it.
unsafe impl Send for Text {}
unsafe impl Sync for Text {}

impl Text {
    fn new(text: &str) -> Text {
        Text(Box::into_raw(text.to_string().into_boxed_str()))
    }

    /// # Safety
    /// The result must not outlive `self`.
    unsafe fn get(&self) -> &'static str {
        &*self.0
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw in new(), dropped once.
        unsafe { drop(Box::from_raw(self.0)) }
    }
}

thread_local! {
    // What strftime_now shows; set for the length of one render.
    static CIVIL_SECONDS: Cell<i64> = const { Cell::new(0) };
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(failure(format!("the chat template says: {message}")))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    strftime(format, CIVIL_SECONDS.get())
        .ok_or_else(|| failure(format!("strftime_now does not know the format {format:?}")))
}

fn new_environment(limits: &Limits) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(limits.fuel));
    environment.set_recursion_limit(limits.recursion_max);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _, value| budget::print(value, out));
    environment.remove_global("debug"); // not what Jinja2 has
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    filters::register(&mut environment, limits.output_bytes_max);
    jinja_tests::register(&mut environment);
    objects::register(&mut environment);
    operators::register(&mut environment);
    namespace::register(&mut environment);
    environment
}

fn syntax() -> Result<SyntaxConfig, Failure> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.map_err(Failure::invalid)
}

/// minijinja parses and compiles by recursion and without budgets: what would take too much of
/// either is refused first.
fn compile(source: &'static str) -> Result<(Instructions<'static>, Blocks), Failure> {
    let syntax = syntax()?;
    nesting::check(source, NAME, syntax.clone())?;
    literals::check(source, NAME, syntax.clone())?;
    let tree = parse(source, NAME, syntax).map_err(|error| Failure::invalid(one_line(&error)))?;
    constants::check(&tree)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&tree);
    let (program, blocks) = generator.finish();
    for compiled in std::iter::once(&program).chain(blocks.values()) {
        if let Some((message, line)) = program::refused(compiled) {
            return Err(Failure::Invalid(format!("{message} (chat template, line {line})")));
        }
    }
    let blocks = blocks
        .into_iter()
        .map(|(name, block)| (name, program::expand(&block, NAME, source)))
        .collect();
    Ok((program::expand(&program, NAME, source), blocks))
}

fn rewrite_assignments(
    program: &mut Instructions<'static>,
    environment: &mut Environment<'static>,
    names: &mut Vec<Text>,
) -> Result<(), Failure> {
    let assignments = program::assignments(program).ok_or_else(|| {
        Failure::invalid("{% set %} of an attribute must be of the form variable.name = value")
    })?;
    for assignment in &assignments {
        let (variable, name) = (assignment.variable, assignment.name);
        let filter = Text::new(&format!("{variable}.{name}="));
        // SAFETY: the program that borrows the name lives in the same handle and drops before it.
        let filter_name: &'static str = unsafe { filter.get() };
        namespace::register_assignment(environment, filter_name, variable, name);
        program::rewrite_assignment(program, assignment, filter_name);
        names.push(filter);
    }
    Ok(())
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
        // Jinja2 reads every line end as \n.
        let source = &source.replace("\r\n", "\n").replace('\r', "\n");
        let mut environment = new_environment(&limits);
        let owned = Text::new(&generation::without_tags(source, NAME, &syntax()?)?);
        // SAFETY: the program that borrows the text lives in the same handle and drops before it.
        let source: &'static str = unsafe { owned.get() };
        let (mut instructions, mut blocks) = compile(source)?;
        let mut names = Vec::new();
        let mut longest_literal = 0;
        for program in std::iter::once(&mut instructions).chain(blocks.values_mut()) {
            rewrite_assignments(program, &mut environment, &mut names)?;
            longest_literal = longest_literal.max(program::rewrite(program));
        }
        // Literal text is the one thing that is copied without a charge: bound it by the fuel.
        let copies = LITERAL_BYTES_MAX / longest_literal.max(1) as u64;
        environment.set_fuel(Some(limits.fuel.min(copies)));
        Ok(TemplateHandle {
            instructions,
            blocks,
            environment,
            limits,
            _names: names,
            _source: owned,
        })
    }

    fn render(
        &self,
        context: &str,
        twin_pairs: &str,
        civil_seconds: i64,
    ) -> Result<Vec<u8>, Failure> {
        let context: serde_json::Value = serde_json::from_str(context).map_err(Failure::invalid)?;
        if !context.is_object() {
            return Err(Failure::invalid("the template's variables must be a JSON object"));
        }
        CIVIL_SECONDS.set(civil_seconds);
        twins::begin(twin_pairs);
        budget::begin(self.limits.work_bytes_max);
        let _namespaces = namespace::Lifetime::begin();
        let mut output = String::new();
        let result = eval(
            &self.environment,
            &self.instructions,
            Value::from(Serde(&context)),
            &self.blocks,
            &mut make_string_output(&mut output),
            AutoEscape::None,
        )
        .map(|_| ());
        match result {
            Ok(()) if output.len() > self.limits.output_bytes_max => Err(Failure::Limit(format!(
                "the template writes more than {} bytes",
                self.limits.output_bytes_max
            ))),
            Ok(()) => Ok(output.into_bytes()),
            Err(_) if budget::exhausted() => Err(Failure::Limit(format!(
                "the template reads and builds more than {} bytes",
                self.limits.work_bytes_max
            ))),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => {
                Err(Failure::Limit("the template runs for too many instructions".to_string()))
            }
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
    twin_pairs: *const u8,
    twin_pairs_size: usize,
    civil_seconds: i64,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let context =
            std::str::from_utf8(slice(context, context_size)).map_err(Failure::invalid)?;
        let twin_pairs = text(twin_pairs, twin_pairs_size)?;
        give_bytes(out, (*template).render(context, twin_pairs, civil_seconds)?);
        Ok(())
    })
}
