//! An answer of a model that reasons first: reasoning between two markers, of a limited number of
//! tokens if there is a budget, and then what a grammar says, or anything.
//!
//! The markers are found in the bytes of the answer, as `src/text/answer_parser.cc` finds them in
//! its text. So it makes no difference whether a marker is a token of its own, is spelled over
//! several, or shares one with its neighbours. Reasoning itself needs no grammar.

use std::sync::{Arc, Mutex};

use anyhow::ensure;
use llguidance::toktrie::{SimpleVob, TokenId};
use serde_json::Value;

use crate::engine::{Allowed, Engine, Fault, Piece, Step, Tokens};
use crate::marker::Marker;

/// White space that may come between the reasoning and what the grammar says. More of it is not
/// allowed, because small models may write it without end.
const GAP: &[u8] = b" \n";
const GAP_MAX: usize = 4;

/// Before an opening marker.
fn is_space(byte: u8) -> bool {
    b" \n\r\t".contains(&byte)
}

/// A compiled grammar.
pub struct Reasoned {
    tokens: Arc<Tokens>,
    begin: Marker,
    end: Marker,
    begun: bool, // the prompt has the opening marker
    budget: Option<u64>,
    body: Option<Engine>, // at the start of what follows the reasoning; none: anything
    holders: Vec<TokenId>, // tokens that have the whole end marker in them
    masks: Mutex<Masks>,
}

/// By how many bytes of the end marker have come. Made when they are needed first.
struct Masks {
    thinking: Vec<Option<SimpleVob>>,
    closing: Vec<Option<SimpleVob>>, // the budget is used up
}

impl Reasoned {
    /// `body`: the grammar of what follows the reasoning.
    pub fn new(
        tokens: &Arc<Tokens>,
        options: &Value,
        body: Option<Engine>,
    ) -> anyhow::Result<Reasoned> {
        let begin = Marker::of(options, "begin")?;
        let end = Marker::of(options, "end")?;
        let vocabulary = tokens.trie().vocab_size() as TokenId;
        let special = |id: &Option<TokenId>| id.is_none_or(|id| id < vocabulary);
        ensure!(special(&begin.id) && special(&end.id), "a marker of reasoning is no token");
        let holders = (0..vocabulary)
            .filter(|&id| match tokens.piece(id) {
                Piece::Text(text) => text.windows(end.text.len()).any(|part| part == end.text),
                _ => false,
            })
            .collect();
        let none = vec![None; end.text.len()];
        Ok(Reasoned {
            tokens: tokens.clone(),
            begin,
            end,
            begun: options["begun"].as_bool().unwrap_or(false),
            budget: options["budget"].as_u64(),
            body,
            holders,
            masks: Mutex::new(Masks { thinking: none.clone(), closing: none }),
        })
    }

    /// Whether `tail` may follow the end marker within a token.
    fn allows_after_end(&self, tail: &[u8]) -> bool {
        let Some(body) = &self.body else { return true };
        let mut body = body.clone();
        let gap = tail.iter().take(GAP_MAX).take_while(|byte| GAP.contains(byte)).count();
        tail.len() == gap || (0..=gap).any(|size| body.accepts(&tail[size..]))
    }

    /// Whether `tail` may follow the opening marker within a token.
    fn allows_after_begin(&self, tail: &[u8], budget_left: bool) -> bool {
        match self.end.find(0, tail) {
            _ if !budget_left && tail.starts_with(&self.end.text) => {
                self.allows_after_end(&tail[self.end.text.len()..])
            }
            _ if !budget_left => {
                tail.iter().all(|&byte| is_space(byte)) || self.end.text.starts_with(tail)
            }
            Ok(size) => self.allows_after_end(&tail[size..]),
            Err(_) => true,
        }
    }

    /// The tokens whose text is a part of `begun`, or `begun` and what may follow it.
    fn mask_after(&self, begun: &[u8]) -> Step<SimpleVob> {
        let mut set = self.tokens.trie().alloc_token_set();
        match &self.body {
            None => self.tokens.add_compatible(begun, &mut set),
            Some(body) => {
                let mut body = body.clone();
                for gap in gaps(GAP_MAX) {
                    set.or(&body.mask(&[begun, &gap].concat())?);
                }
            }
        }
        Ok(set)
    }

    /// All but what ends the reasoning and goes on with what may not follow it.
    fn thinking_mask(&self, matched: usize) -> Step<SimpleVob> {
        let tokens = &self.tokens;
        let trie = tokens.trie();
        let mut set = trie.alloc_token_set();
        for id in 0..trie.vocab_size() as TokenId {
            let allowed = match tokens.piece(id) {
                Piece::Text(_) => true,
                // Whether its text is seen is not known here, so it may not come within a marker.
                Piece::Special => matched == 0,
                Piece::Unknown => false,
            };
            if allowed && !tokens.is_end(id) {
                set.allow_token(id);
            }
        }
        let mut closers = self.holders.clone();
        let mut border = self.end.borders[matched];
        while border > 0 {
            closers.extend(tokens.beginning_with(self.end.rest(border)));
            border = self.end.borders[border];
        }
        for id in closers {
            let text = trie.token(id);
            if let Ok(size) = self.end.find(matched, text) {
                set.set(id as usize, self.allows_after_end(&text[size..]));
            }
        }
        if matched > 0 {
            let rest = self.end.rest(matched);
            tokens.beginning_with(rest).into_iter().for_each(|id| set.disallow_token(id));
            set.or(&self.mask_after(rest)?);
        }
        if let Some(id) = self.end.id {
            set.allow_token(id);
        }
        Ok(set)
    }

    /// Nothing but the rest of the end marker.
    fn closing_mask(&self, matched: usize) -> Step<SimpleVob> {
        // In one token if there is one: a model that would rather write the first letter of the
        // marker than the marker would otherwise have to spell it.
        if matched == 0 {
            let spelled = || {
                let mut whole = self.tokens.beginning_with(&self.end.text).into_iter();
                whole.find(|&id| self.tokens.trie().token(id) == self.end.text)
            };
            if let Some(id) = self.end.id.or_else(spelled) {
                let mut set = self.tokens.trie().alloc_token_set();
                set.allow_token(id);
                return Ok(set);
            }
        }
        let mut set = self.mask_after(self.end.rest(matched))?;
        if let Some(id) = self.end.id.filter(|_| matched == 0 || set.is_zero()) {
            set.allow_token(id);
        }
        Ok(set)
    }
}

/// All white space of up to `size_max` bytes that may follow the reasoning.
fn gaps(size_max: usize) -> Vec<Vec<u8>> {
    let mut all = vec![vec![]];
    let mut first = 0;
    for _ in 0..size_max {
        let longest = first..all.len();
        first = all.len();
        for i in longest {
            for &byte in GAP {
                all.push([all[i].as_slice(), &[byte]].concat());
            }
        }
    }
    all
}

#[derive(Clone)]
enum At {
    /// Nothing but white space and a part of an opening marker has come, since the beginning or
    /// since the reasoning. Meanwhile the bodies run beside it.
    Lead(Lead),
    /// Since then, so many bytes of the end marker are the last that have come.
    Thinking(usize),
    Body,
}

#[derive(Clone)]
struct Lead {
    matched: usize, // bytes of the opening marker
    spaces: usize,  // bytes of white space before it
    first: bool,    // of the answer, where the grammar allows reasoning
    gap: bool,      // what the grammar says may begin here, after this white space
}

impl Lead {
    fn new(first: bool) -> Lead {
        Lead { matched: 0, spaces: 0, first, gap: !first }
    }
}

/// One sequence.
pub struct Answer {
    grammar: Arc<Reasoned>,
    at: At,
    /// Those that the text since the reasoning matches: more than one while white space may belong
    /// to the gap or to the body.
    bodies: Vec<Engine>,
    spent: u64, // tokens of reasoning
}

impl Answer {
    pub fn new(grammar: Arc<Reasoned>) -> Answer {
        let at = match grammar.begun {
            true => At::Thinking(0),
            false => At::Lead(Lead::new(true)),
        };
        let bodies = match grammar.begun {
            true => vec![],
            false => grammar.body.iter().cloned().collect(),
        };
        Answer { grammar, at, bodies, spent: 0 }
    }

    fn budget_left(&self) -> bool {
        self.grammar.budget.is_none_or(|budget| self.spent < budget)
    }

    pub fn mask(&mut self) -> Step<Allowed> {
        let grammar = self.grammar.clone();
        match &self.at {
            &At::Thinking(matched) => {
                let left = self.budget_left();
                if left && grammar.body.is_none() {
                    return Ok(Allowed::Any);
                }
                let mut masks = grammar.masks.lock().unwrap_or_else(|broken| broken.into_inner());
                let known = match left {
                    true => &mut masks.thinking[matched],
                    false => &mut masks.closing[matched],
                };
                if known.is_none() {
                    *known = Some(match left {
                        true => grammar.thinking_mask(matched)?,
                        false => grammar.closing_mask(matched)?,
                    });
                }
                Ok(Allowed::These(known.clone().unwrap()))
            }
            At::Body if grammar.body.is_none() => Ok(Allowed::Any),
            At::Body => self.mask_of_bodies().map(Allowed::These),
            At::Lead(_) if grammar.body.is_none() && self.budget_left() => Ok(Allowed::Any),
            At::Lead(lead) => {
                let lead = lead.clone();
                self.lead_mask(&lead)
            }
        }
    }

    fn mask_of_bodies(&mut self) -> Step<SimpleVob> {
        let mut set = self.grammar.tokens.trie().alloc_token_set();
        for body in &mut self.bodies {
            set.or(&body.mask(b"")?);
        }
        Ok(set)
    }

    fn lead_mask(&mut self, lead: &Lead) -> Step<Allowed> {
        let grammar = self.grammar.clone();
        let tokens = &grammar.tokens;
        let mut set = self.mask_of_bodies()?;
        if let Some(body) = &grammar.body {
            let mut body = body.clone();
            if lead.gap {
                for gap in &gaps(GAP_MAX.saturating_sub(lead.spaces))[1..] {
                    set.or(&body.mask(gap)?);
                }
            }
            if lead.first {
                tokens.add_compatible(grammar.begin.rest(lead.matched), &mut set);
                if let Some(id) = grammar.begin.id.filter(|_| lead.matched == 0) {
                    set.allow_token(id);
                }
            }
        } else {
            set.set_all(true);
        }
        // What opens the reasoning may go on in the same token. After white space it may be a token
        // that begins with some.
        let budget_left = self.budget_left();
        let rest = grammar.begin.rest(lead.matched);
        let mut openers = tokens.beginning_with(rest);
        if lead.matched == 0 {
            for space in b" \n\r\t" {
                openers.extend(tokens.beginning_with(&[*space]));
            }
        }
        let mut any = grammar.body.is_none();
        // Reasoning that used its budget up does not begin again.
        let closed = !lead.first && !budget_left;
        if let Some(id) = grammar.begin.id.filter(|_| closed) {
            set.disallow_token(id);
            any = false;
        }
        for id in openers {
            if let Some(size) = self.opens_at(lead, tokens.trie().token(id)) {
                let tail = &tokens.trie().token(id)[size..];
                if closed || !grammar.allows_after_begin(tail, budget_left) {
                    set.disallow_token(id);
                    any = false;
                }
            }
        }
        Ok(if any { Allowed::Any } else { Allowed::These(set) })
    }

    /// Where in `text` the opening marker ends that it continues.
    fn opens_at(&self, lead: &Lead, text: &[u8]) -> Option<usize> {
        let spaces = match lead.matched {
            0 => text.iter().take_while(|&&byte| is_space(byte)).count(),
            _ => 0,
        };
        let rest = self.grammar.begin.rest(lead.matched);
        text[spaces..].starts_with(rest).then_some(spaces + rest.len())
    }

    pub fn consume(&mut self, id: TokenId) -> Step<()> {
        let grammar = self.grammar.clone();
        let thinks = matches!(self.at, At::Thinking(_));
        if grammar.tokens.is_end(id) {
            return match grammar.body {
                Some(_) if thinks => Err(Fault::Mismatch("the reasoning has no end".to_string())),
                Some(_) => self.consume_in_bodies(id, None),
                None => Ok(()),
            };
        }
        let markers = [&grammar.begin, &grammar.end];
        let marker = markers.into_iter().find(|marker| marker.id == Some(id));
        let opens = matches!(&self.at, At::Lead(lead) if lead.matched == 0);
        self.spent += u64::from(thinks);
        match (grammar.tokens.piece(id), marker) {
            // A special token is a marker where the text of the answer shows it as one.
            (_, Some(marker)) if thinks || (opens && marker.id == grammar.begin.id) => {
                self.read(id, &marker.text, false)
            }
            (Piece::Text(text), _) => self.read(id, text, true),
            _ if thinks || grammar.body.is_none() => Ok(()),
            _ => self.consume_in_bodies(id, None),
        }
    }

    /// `whole`: `text` is all of the token's.
    fn read(&mut self, id: TokenId, text: &[u8], whole: bool) -> Step<()> {
        let grammar = self.grammar.clone();
        match self.at.clone() {
            At::Thinking(matched) => match grammar.end.find(matched, text) {
                Err(matched) => {
                    self.at = At::Thinking(matched);
                    Ok(())
                }
                Ok(size) => {
                    self.at = At::Lead(Lead::new(false));
                    self.bodies = grammar.body.iter().cloned().collect();
                    self.read_tail(id, &text[size..])
                }
            },
            At::Lead(lead) => match self.opens_at(&lead, text) {
                Some(size) => {
                    self.at = At::Thinking(0);
                    self.bodies.clear();
                    self.spent += u64::from(text[size..].iter().any(|&byte| !is_space(byte)));
                    self.read_tail(id, &text[size..])
                }
                None => self.read_lead(id, text, whole, lead),
            },
            At::Body if grammar.body.is_none() => Ok(()),
            At::Body => self.consume_in_bodies(id, (!whole).then_some(text)),
        }
    }

    fn read_tail(&mut self, id: TokenId, tail: &[u8]) -> Step<()> {
        match tail {
            [] => Ok(()),
            _ => self.read(id, tail, false),
        }
    }

    /// No opening marker ends in `text`.
    fn read_lead(&mut self, id: TokenId, text: &[u8], whole: bool, mut lead: Lead) -> Step<()> {
        let mut bodies = std::mem::take(&mut self.bodies);
        bodies.retain_mut(|body| body.accepts(text));
        for body in &mut bodies {
            body.consume(id, (!whole).then_some(text))?;
        }
        let mut opens = true;
        for (i, &byte) in text.iter().enumerate() {
            let gap = lead.gap && lead.matched == 0 && GAP.contains(&byte) && lead.spaces < GAP_MAX;
            lead.gap = gap;
            if let Some(body) = self.grammar.body.as_ref().filter(|_| gap) {
                let mut body = body.clone();
                if body.accepts(&text[i + 1..]) {
                    body.consume(id, Some(&text[i + 1..]))?;
                    bodies.push(body);
                }
            }
            if lead.matched == 0 && is_space(byte) {
                lead.spaces += 1;
            } else if self.grammar.begin.text[lead.matched] == byte {
                lead.matched += 1;
            } else {
                opens = false;
                break;
            }
        }
        self.bodies = bodies;
        if opens {
            self.at = At::Lead(lead);
            return Ok(());
        }
        self.at = At::Body;
        match self.grammar.body.is_some() && self.bodies.is_empty() {
            true => Err(Fault::Mismatch("the text does not match".to_string())),
            false => Ok(()),
        }
    }

    fn consume_in_bodies(&mut self, id: TokenId, text: Option<&[u8]>) -> Step<()> {
        self.at = At::Body;
        let mut fault = Fault::Mismatch("the text does not match".to_string());
        let mut bodies = std::mem::take(&mut self.bodies);
        bodies.retain_mut(|body| match body.consume(id, text) {
            Ok(()) => true,
            Err(why) => {
                fault = why;
                false
            }
        });
        self.bodies = bodies;
        match self.bodies.is_empty() {
            true => Err(fault),
            false => Ok(()),
        }
    }
}
