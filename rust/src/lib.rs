//! The C ABI of `millrace_text.h`. This file has the parts that all entry points share; `tokenizer`
//! and `template` have the rest. The header is the reference for ownership and meaning.

mod arguments;
mod budget;
mod characters;
mod constants;
mod decoder;
mod divide;
mod engine;
mod filters;
mod formats;
mod gbnf;
mod gbnf_chars;
mod gbnf_grammars;
mod gbnf_lark;
mod gbnf_rules;
mod gbnf_writer;
mod generation;
mod grammar;
mod jinja_tests;
mod json_out;
mod lists;
mod literals;
mod load_limits;
mod marker;
mod matcher;
mod methods;
mod namespace;
mod nesting;
mod normalize;
mod numbers;
mod objects;
mod operators;
mod order;
mod program;
mod reasoned;
mod repr;
mod schema;
mod schema_alternatives;
mod schema_place;
mod strftime;
mod strings;
mod template;
mod texts;
mod tokenizer;
mod twins;
mod wrap;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

pub const ABI_VERSION: u32 = 5;

const OK: i32 = 0;
const INVALID: i32 = 1;
const LIMIT: i32 = 2;
const INTERNAL: i32 = 3;

/// The failure of an entry point, as passed over the ABI.
pub enum Failure {
    Invalid(String),
    Limit(String),
    Internal(String),
}

impl Failure {
    pub fn invalid(message: impl ToString) -> Failure {
        Failure::Invalid(message.to_string())
    }
}

#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    size: usize,
}

#[repr(C)]
pub struct Ids {
    data: *mut u32,
    size: usize,
}

#[repr(C)]
pub struct View {
    data: *const u8,
    size: usize,
}

impl View {
    pub fn of(bytes: &[u8]) -> View {
        View { data: bytes.as_ptr(), size: bytes.len() }
    }
}

fn into_raw<T>(values: Vec<T>) -> (*mut T, usize) {
    let boxed = values.into_boxed_slice();
    let size = boxed.len();
    (Box::into_raw(boxed) as *mut T, size)
}

unsafe fn drop_raw<T>(data: *mut T, size: usize) {
    if !data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(data, size)));
    }
}

pub(crate) unsafe fn give_bytes(out: *mut Bytes, bytes: Vec<u8>) {
    let (data, size) = into_raw(bytes);
    out.write(Bytes { data, size });
}

pub(crate) unsafe fn give_ids(out: *mut Ids, ids: Vec<u32>) {
    let (data, size) = into_raw(ids);
    out.write(Ids { data, size });
}

/// The caller's buffer as a slice; an empty one may be null.
pub(crate) unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

pub(crate) unsafe fn text<'a>(data: *const u8, size: usize) -> Result<&'a str, Failure> {
    std::str::from_utf8(slice(data, size))
        .map_err(|error| Failure::Invalid(format!("invalid UTF-8 at byte {}", error.valid_up_to())))
}

/// Runs one entry point: turns failures and panics into a code and a message.
pub(crate) unsafe fn enter(error: *mut Bytes, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    static QUIET: Once = Once::new();
    // A caught panic is reported through the status; the default hook would also print it.
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let (code, message) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return OK,
        Ok(Err(Failure::Invalid(message))) => (INVALID, message),
        Ok(Err(Failure::Limit(message))) => (LIMIT, message),
        Ok(Err(Failure::Internal(message))) => (INTERNAL, message),
        Err(panic) => (INTERNAL, panic_message(panic)),
    };
    give_bytes(error, message.into_bytes());
    code
}

pub fn panic_message(panic: Box<dyn std::any::Any + Send>) -> String {
    if let Some(message) = panic.downcast_ref::<String>() {
        message.clone()
    } else if let Some(message) = panic.downcast_ref::<&str>() {
        message.to_string()
    } else {
        "panic without a message".to_string()
    }
}

#[no_mangle]
pub extern "C" fn mrt_abi_version() -> u32 {
    ABI_VERSION
}

/// # Safety
/// `bytes` came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn mrt_bytes_free(bytes: Bytes) {
    drop_raw(bytes.data, bytes.size);
}

/// # Safety
/// `ids` came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn mrt_ids_free(ids: Ids) {
    drop_raw(ids.data, ids.size);
}
