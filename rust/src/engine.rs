//! One sequence in a grammar of `llguidance`, a byte at a time if need be: tokens may begin before
//! the grammar does, or hold what only its end belongs to. `Matcher` of the crate takes whole
//! tokens only, so this drives the parser below it.

use std::sync::Arc;

use anyhow::{anyhow, ensure};
use llguidance::api::TopLevelGrammar;
use llguidance::earley::{BiasComputer, Parser, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokEnv, TokTrie, TokenId};
use llguidance::ParserFactory;

/// Why a step of a matcher failed.
#[derive(Debug)]
pub enum Fault {
    Mismatch(String), // the output is not what the grammar allows
    Limit(String),    // a limit of work or size
}

pub type Step<T> = Result<T, Fault>;

/// What may come next.
pub enum Allowed {
    Any,
    These(SimpleVob),
}

/// The tokens of a model, and how its grammars are compiled.
pub struct Tokens {
    pub env: TokEnv,
    pub stand_in: bool, // for a vocabulary whose tokens it does not have
    factory: ParserFactory,
    slicer: Arc<SlicedBiasComputer>,
}

/// A token as text.
pub enum Piece<'a> {
    Text(&'a [u8]),
    Special,
    Unknown,
}

impl Tokens {
    pub fn new(env: TokEnv, factory: ParserFactory, stand_in: bool) -> Tokens {
        let slicer = factory.slicer();
        Tokens { env, stand_in, factory, slicer }
    }

    pub fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }

    pub fn is_end(&self, id: TokenId) -> bool {
        self.trie().eos_tokens().contains(&id)
    }

    pub fn piece(&self, id: TokenId) -> Piece<'_> {
        match self.trie().token(id) {
            [] => Piece::Unknown,
            [TokTrie::SPECIAL_TOKEN_MARKER, ..] => Piece::Special,
            text => Piece::Text(text),
        }
    }

    /// Special tokens that may come within an answer, by their texts.
    pub fn special_texts(&self) -> Vec<(String, TokenId)> {
        (0..self.trie().vocab_size() as TokenId)
            .filter(|&id| matches!(self.piece(id), Piece::Special) && !self.is_end(id))
            .filter_map(|id| {
                Some((String::from_utf8(self.trie().token(id)[1..].to_vec()).ok()?, id))
            })
            .filter(|(text, _)| !text.is_empty())
            .collect()
    }

    /// Adds the tokens whose text is a beginning of `start` or begins with it.
    pub fn add_compatible(&self, start: &[u8], set: &mut SimpleVob) {
        self.trie().add_bias(&mut Anything, set, start);
    }

    /// The tokens whose text begins with `start`.
    pub fn beginning_with(&self, start: &[u8]) -> Vec<TokenId> {
        let mut set = self.trie().alloc_token_set();
        self.add_compatible(start, &mut set);
        set.iter().filter(|&id| self.trie().token(id).starts_with(start)).collect()
    }
}

struct Anything;

impl Recognizer for Anything {
    fn pop_bytes(&mut self, _: usize) {}
    fn collapse(&mut self) {}
    fn trie_finished(&mut self) {}
    fn try_push_byte(&mut self, byte: u8) -> bool {
        byte != TokTrie::SPECIAL_TOKEN_MARKER
    }
}

#[derive(Clone)]
pub struct Engine {
    tokens: Arc<Tokens>,
    parser: Parser,
    accepting: bool, // the text may end here
    complete: bool,  // and has to
}

impl Engine {
    pub fn new(tokens: &Arc<Tokens>, grammar: TopLevelGrammar) -> anyhow::Result<Engine> {
        let parser = tokens.factory.create_parser(grammar)?.parser;
        let mut start =
            Engine { tokens: tokens.clone(), parser, accepting: false, complete: false };
        start.note_ends();
        ensure!(!start.complete, "no text matches it");
        // The first mask shows what only matching finds: limits, and grammars that match nothing.
        // It also warms the caches that all sequences of the grammar share.
        let mask = start.mask(b"").map_err(|fault| match fault {
            Fault::Mismatch(why) | Fault::Limit(why) => anyhow!(why),
        })?;
        ensure!(!mask.is_zero(), "no text of this vocabulary matches it");
        Ok(start)
    }

    /// The tokens whose text is `begun` and then what may come next, or a part of `begun`. With
    /// nothing begun also special tokens, and the end if the text is complete.
    pub fn mask(&mut self, begun: &[u8]) -> Step<SimpleVob> {
        let tokens = self.tokens.clone();
        let trie = tokens.trie();
        if self.complete {
            return Ok(match begun {
                [] => trie.eos_token_set(),
                _ => trie.alloc_token_set(),
            });
        }
        let computer: &dyn BiasComputer = &*tokens.slicer;
        let mut set = self.parser.compute_bias(computer, begun);
        self.check_limits()?;
        if begun.is_empty() && self.accepting {
            trie.eos_tokens().iter().for_each(|&end| set.allow_token(end));
        }
        Ok(set)
    }

    /// Whether `text` may come next.
    pub fn accepts(&mut self, text: &[u8]) -> bool {
        if text.is_empty() || self.complete {
            return text.is_empty();
        }
        self.parser.with_recognizer(|parser: &mut ParserRecognizer| {
            parser.trie_started("accepts");
            let accepted = text
                .iter()
                .all(|&byte| byte != TokTrie::SPECIAL_TOKEN_MARKER && parser.try_push_byte(byte));
            parser.trie_finished();
            accepted
        })
    }

    /// The token comes. `text`: what of it belongs here, if not all of it does.
    pub fn consume(&mut self, id: TokenId, text: Option<&[u8]>) -> Step<()> {
        if text.is_some_and(<[u8]>::is_empty) {
            return Ok(());
        }
        let ends =
            self.tokens.is_end(id) && (self.complete || self.accepting || self.parser.scan_eos());
        if ends {
            self.complete = true;
            return Ok(());
        }
        if self.complete {
            return Err(Fault::Mismatch("the text goes on after its end".to_string()));
        }
        let all = self.tokens.trie().decode_raw(&[id]);
        match self.parser.apply_token(text.unwrap_or(&all), id) {
            Ok(0) => self.check_limits()?,
            Ok(_) => return Err(Fault::Mismatch("the parser would go back".to_string())),
            Err(error) => {
                self.check_limits()?;
                let why = error.to_string();
                return Err(match why.starts_with("Current row has") {
                    true => Fault::Limit(why),
                    false => Fault::Mismatch(why),
                });
            }
        }
        self.note_ends();
        Ok(())
    }

    /// As a fault of the crate would: what the sequences of the grammar share is lost.
    pub fn break_for_test(&mut self) {
        let panic = || self.parser.test_trigger_lexer_error();
        drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panic)));
    }

    fn note_ends(&mut self) {
        self.accepting = self.parser.is_accepting();
        self.complete = self.accepting && !self.parser.can_advance();
    }

    fn check_limits(&self) -> Step<()> {
        self.parser.get_error().map_or(Ok(()), |error| Err(Fault::Limit(error.message())))
    }
}
