//! Grammars and matchers as the C ABI hands them out.
//!
//! The engine may panic: its authors count on it, and it happens in the middle of an answer. What
//! all sequences of a grammar share is lost then. So a grammar is compiled again, and each matcher
//! reads its tokens again. A request fails only if that panics too.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::toktrie::TokenId;

use crate::engine::{Allowed, Engine, Fault, Step, Tokens};
use crate::gbnf_grammars::without_gbnf;
use crate::grammar::{compile, first_line};
use crate::reasoned::{Answer, Reasoned};
use crate::{panic_message, Failure};

/// Where each sequence begins.
#[allow(clippy::large_enum_variant)] // one for each grammar, and most are plain
pub enum Start {
    Plain(Engine),
    Reasoned(Arc<Reasoned>),
}

/// A compiled grammar.
pub struct Grammar {
    shared: Arc<Shared>,
}

struct Shared {
    tokens: Arc<Tokens>,
    text: String,
    start: Mutex<Arc<Start>>,
}

#[allow(clippy::large_enum_variant)] // one for each sequence, and most are plain
enum Run {
    Plain(Engine),
    Reasoned(Answer),
}

/// One sequence.
pub struct Matcher {
    grammar: Arc<Shared>,
    start: Arc<Start>, // that `run` began at
    run: Run,
    read: Vec<TokenId>, // all tokens so far
}

/// A panic of the engine, caught here or by the crate.
const PANIC: &str = "panic: ";

fn guarded<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(panic_message)
}

impl Start {
    fn run(&self) -> Run {
        match self {
            Start::Plain(engine) => Run::Plain(engine.clone()),
            Start::Reasoned(grammar) => Run::Reasoned(Answer::new(grammar.clone())),
        }
    }
}

impl Run {
    fn consume(&mut self, tokens: &[TokenId]) -> Step<()> {
        tokens.iter().try_for_each(|&id| match self {
            Run::Plain(engine) => engine.consume(id, None),
            Run::Reasoned(answer) => answer.consume(id),
        })
    }

    fn mask(&mut self) -> Step<Allowed> {
        match self {
            Run::Plain(engine) => engine.mask(b"").map(Allowed::These),
            Run::Reasoned(answer) => answer.mask(),
        }
    }
}

impl Grammar {
    pub fn new(tokens: &Arc<Tokens>, text: &str) -> Result<Grammar, Failure> {
        let (text, start) = without_gbnf(text, tokens, |text| start_of(tokens, text))?;
        // It may be that only a mask finds a limit. A plain engine has made one.
        if let Start::Reasoned(_) = start {
            guarded(|| start.run().mask()).map_err(Failure::Internal)?.map_err(failure)?;
        }
        let start = Mutex::new(Arc::new(start));
        let shared = Shared { tokens: tokens.clone(), text, start };
        Ok(Grammar { shared: Arc::new(shared) })
    }

    /// "<kind>:<text>", without GBNF.
    pub fn text(&self) -> &str {
        &self.shared.text
    }

    pub fn matcher(&self) -> Matcher {
        let start = self.shared.start.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Matcher { grammar: self.shared.clone(), run: start.run(), start, read: vec![] }
    }
}

fn start_of(tokens: &Arc<Tokens>, text: &str) -> Result<Start, Failure> {
    let compiled = guarded(|| compile(tokens, text)).map_err(Failure::Internal)?;
    compiled.map_err(|error| {
        let why = first_line(error);
        match why.strip_prefix(PANIC) {
            Some(panic) => Failure::Internal(panic.to_string()),
            None => Failure::Invalid(why),
        }
    })
}

fn failure(fault: Fault) -> Failure {
    match fault {
        Fault::Mismatch(why) => Failure::Invalid(why),
        Fault::Limit(why) => Failure::Limit(why),
    }
}

impl Matcher {
    pub fn consume(&mut self, tokens: &[TokenId]) -> Result<(), Failure> {
        self.read.extend_from_slice(tokens);
        let consumed = match guarded(|| self.run.consume(tokens)) {
            Ok(consumed) => consumed,
            Err(_) => self.again(|_| Ok(()))?,
        };
        consumed.map_err(failure)
    }

    pub fn mask(&mut self) -> Result<Allowed, Failure> {
        let mask = match guarded(|| self.run.mask()) {
            Ok(mask) => mask,
            Err(_) => self.again(Run::mask)?,
        };
        mask.map_err(failure)
    }

    pub fn break_for_test(&mut self) {
        if let Run::Plain(engine) = &mut self.run {
            engine.break_for_test();
        }
    }

    /// After a panic: from the start of the grammar, all tokens so far, and then `step`.
    fn again<T>(&mut self, step: impl FnOnce(&mut Run) -> Step<T>) -> Result<Step<T>, Failure> {
        {
            let mut start = self.grammar.start.lock().unwrap_or_else(PoisonError::into_inner);
            if Arc::ptr_eq(&start, &self.start) {
                *start = Arc::new(start_of(&self.grammar.tokens, &self.grammar.text)?);
            }
            self.start = start.clone();
        }
        guarded(|| {
            self.run = self.start.run();
            self.run.consume(&self.read)?;
            step(&mut self.run)
        })
        .map_err(Failure::Internal)
    }
}
