//! Writes a GBNF grammar in Lark, for llguidance.
//!
//! The two differ in one thing. GBNF's meaning is over characters. llguidance first cuts the text
//! into lexemes, each as long as what may stand at its place allows, and never goes back. So the
//! parts that become one lexeme are chosen such that this cut is always the one that the grammar
//! needs:
//!
//! - A grammar without recursion is one lexeme, a regular expression.
//! - Else the longest parts without recursion are tried. A lexeme M is taken apart if a text of
//!   some lexeme L, and one byte with which the grammar can go on after L, are also the beginning
//!   of a text of M: the cut would come too late. Whether there is such a text is asked of the
//!   expressions themselves, exactly.
//! - Single characters are never taken for the beginning of another lexeme, so the process ends.
//!
//! Lexemes are long where it matters, in strings and numbers, because a mask costs an Earley row
//! for each lexeme that a token ends.

use std::collections::{HashMap, HashSet};
use std::panic::{catch_unwind, AssertUnwindSafe};

use llguidance::derivre::raw::RelevanceCache;
use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};

use crate::gbnf::{self, Gbnf, Node, NodeId, RuleId, TokenRef};
use crate::gbnf_rules::{groups, nodes_of, prune, recursive, repeat_linear};
use crate::gbnf_writer::{class, Writer};

/// Characters that a lexeme may count to; the lexer has about as many states for it. Longer ones
/// are taken apart, if not into single characters.
const LEXEME_CHARS_MAX: u64 = 4_000;
/// What may be repeated often and stays one lexeme.
const REPEATED_CHARS_MAX: u64 = 8;
/// How often lexemes are taken apart before all become single characters.
const ROUNDS_MAX: usize = 64;
/// Work of one question about an expression, and of all, in units of the crate.
const QUESTION_FUEL: u64 = 100_000;
const QUESTIONS_FUEL: u64 = 2_000_000;

/// Resolves what a grammar says of tokens.
pub trait Tokens {
    /// As Lark's <[...]>, or why there is no such token.
    fn write(&self, token: &TokenRef, negated: bool) -> Result<String, String>;
}

/// The error is one line; if it is the text's, with its place. `single`: each lexeme is one
/// character, which is slow, but asks nothing of the crate's expressions.
pub fn lark_of(text: &str, tokens: &dyn Tokens, single: bool) -> Result<String, String> {
    let mut grammar = gbnf::parse(text)?;
    let groups = groups(&grammar);
    if !prune(&mut grammar, &groups) {
        return Err("no text matches \"root\": every way through it needs another one".to_string());
    }
    repeat_linear(&mut grammar, &groups);
    let mut lexing = Lexing::new(grammar, &groups);
    lexing.choose_lexemes(single);
    Writer::new(&lexing, tokens).write()
}

#[derive(Clone, Copy, Default, PartialEq)]
struct ByteSet([u64; 4]);

impl ByteSet {
    fn add(&mut self, byte: u8) {
        self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
    }
    fn join(&mut self, other: ByteSet) -> bool {
        let before = *self;
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
        *self != before
    }
    fn meets(&self, other: &ByteSet) -> bool {
        self.0.iter().zip(other.0).any(|(word, other)| word & other != 0)
    }
    fn is_empty(&self) -> bool {
        *self == ByteSet::default()
    }
    fn regex(&self) -> RegexAst {
        RegexAst::ByteSet(self.0.iter().flat_map(|&w| [w as u32, (w >> 32) as u32]).collect())
    }
}

fn first_byte(c: char) -> u8 {
    c.encode_utf8(&mut [0; 4]).as_bytes()[0]
}

#[derive(Clone, Copy, Default)]
struct Facts {
    /// No recursion and no tokens in it.
    regular: bool,
    nullable: bool,
    first: ByteSet,
    chars: u64,
}

pub struct Lexing {
    pub grammar: Gbnf,
    facts: Vec<Facts>,  // of nodes
    rules: Vec<Facts>,  // of their bodies
    order: Vec<RuleId>, // those that a rule refers to before it
    recursive: Vec<bool>,
    opened: HashSet<NodeId>,
    /// Nodes that only this file makes, by what they are, and what it has taken apart.
    made: HashMap<Node, NodeId>,
    pub parts: HashMap<NodeId, Vec<NodeId>>,
    single: bool, // all lexemes are single characters
}

impl Lexing {
    fn new(grammar: Gbnf, groups: &[Vec<RuleId>]) -> Lexing {
        let mut lexing = Lexing {
            facts: vec![Facts::default(); grammar.nodes.len()],
            rules: vec![Facts::default(); grammar.rules.len()],
            order: groups.concat(),
            recursive: vec![false; grammar.rules.len()],
            grammar,
            opened: HashSet::new(),
            made: HashMap::new(),
            parts: HashMap::new(),
            single: false,
        };
        for group in groups {
            lexing.find_facts(group);
        }
        lexing
    }

    fn find_facts(&mut self, group: &[RuleId]) {
        // A group that has become repetition no longer refers to itself.
        let is_recursive = recursive(&self.grammar, group);
        let mut changed = true;
        while changed {
            changed = false;
            for &rule in group {
                self.recursive[rule] = is_recursive;
                let body = self.grammar.rules[rule];
                for id in nodes_of(&self.grammar, body) {
                    self.facts[id] = self.facts_of(&self.grammar.nodes[id]);
                }
                let (facts, known) = (self.facts[body], &mut self.rules[rule]);
                changed |= known.first.join(facts.first) || known.nullable != facts.nullable;
                changed &= is_recursive;
                known.nullable = facts.nullable;
                known.regular = facts.regular && !is_recursive;
                known.chars = facts.chars;
            }
        }
    }

    fn facts_of(&self, node: &Node) -> Facts {
        let mut facts = Facts { regular: true, ..Facts::default() };
        match node {
            Node::Text(text) => {
                text.chars().take(1).for_each(|c| facts.first.add(first_byte(c)));
                facts.chars = text.chars().count() as u64;
                facts.nullable = text.is_empty();
            }
            Node::Chars(ranges) => {
                for &(first, last) in ranges {
                    (first_byte(first)..=first_byte(last)).for_each(|byte| facts.first.add(byte));
                }
                facts.chars = 1;
            }
            Node::Token { .. } => facts.regular = false,
            Node::Rule(rule) => {
                facts = self.rules[*rule];
                facts.regular &= !self.recursive[*rule];
            }
            Node::Sequence(items) => {
                facts.nullable = true;
                for &item in items {
                    let item = self.facts[item];
                    if facts.nullable {
                        facts.first.join(item.first);
                    }
                    facts.nullable &= item.nullable;
                    facts.regular &= item.regular;
                    facts.chars = facts.chars.saturating_add(item.chars);
                }
            }
            Node::Choice(items) => {
                for &item in items {
                    let item = self.facts[item];
                    facts.first.join(item.first);
                    facts.nullable |= item.nullable;
                    facts.regular &= item.regular;
                    facts.chars = facts.chars.saturating_add(item.chars);
                }
            }
            Node::Repeat(item, min, max) => {
                facts = self.facts[*item];
                facts.nullable |= *min == 0;
                facts.chars = facts.chars.saturating_mul(max.unwrap_or(min + 1).into());
            }
        }
        facts
    }

    fn make(&mut self, node: Node) -> NodeId {
        if let Some(&id) = self.made.get(&node) {
            return id;
        }
        self.facts.push(self.facts_of(&node));
        let id = self.grammar.add(node.clone());
        self.made.insert(node, id);
        id
    }

    pub fn node(&self, id: NodeId) -> &Node {
        &self.grammar.nodes[id]
    }

    pub fn is_empty(&self, id: NodeId) -> bool {
        let facts = self.facts[id];
        facts.regular && facts.first.is_empty()
    }

    /// The lexeme that `id` is, or whose rule it names. REQUIRES: it is not empty.
    pub fn lexeme(&self, mut id: NodeId) -> Option<NodeId> {
        while let Node::Rule(rule) = self.grammar.nodes[id] {
            if !self.rules[rule].regular {
                return None;
            }
            id = self.grammar.rules[rule];
        }
        self.is_lexeme(id).then_some(id)
    }

    fn is_character(&self, id: NodeId) -> bool {
        match self.node(id) {
            Node::Chars(_) => true,
            Node::Text(text) => text.chars().nth(1).is_none(),
            _ => false,
        }
    }

    fn is_lexeme(&self, id: NodeId) -> bool {
        if self.is_character(id) {
            return true;
        }
        let facts = self.facts[id];
        if !facts.regular || self.single || self.opened.contains(&id) {
            return false;
        }
        let repeats_little = match *self.node(id) {
            Node::Repeat(item, _, _) => self.facts[item].chars <= REPEATED_CHARS_MAX,
            Node::Text(_) => true,
            _ => false,
        };
        repeats_little || facts.chars <= LEXEME_CHARS_MAX
    }

    /// The parts of a sequence that is no lexeme, or of a text.
    fn parts(&mut self, id: NodeId) -> Vec<NodeId> {
        if !self.parts.contains_key(&id) {
            let parts = self.take_apart(id);
            self.parts.insert(id, parts);
        }
        self.parts[&id].clone()
    }

    fn take_apart(&mut self, id: NodeId) -> Vec<NodeId> {
        match self.node(id).clone() {
            Node::Text(text) => {
                text.chars().map(|c| self.make(Node::Text(c.to_string()))).collect()
            }
            Node::Sequence(mut items) if self.facts[id].regular && items.len() > 1 => {
                // What makes a lexeme unfit is most often its end, such as white space.
                let last = items.pop().unwrap_or_default();
                vec![self.run(items), last]
            }
            Node::Sequence(items) => {
                let mut parts = Vec::new();
                let mut run = Vec::new();
                for item in items {
                    if self.facts[item].regular {
                        run.push(item);
                        continue;
                    }
                    if !run.is_empty() {
                        parts.push(self.run(std::mem::take(&mut run)));
                    }
                    parts.push(item);
                }
                if !run.is_empty() {
                    parts.push(self.run(run));
                }
                parts
            }
            _ => vec![id],
        }
    }

    fn run(&mut self, items: Vec<NodeId>) -> NodeId {
        match items.len() {
            1 => items[0],
            _ => self.make(Node::Sequence(items)),
        }
    }

    fn choose_lexemes(&mut self, single: bool) {
        for _ in 0..if single { 0 } else { ROUNDS_MAX } {
            let lexemes = Followers::of(self);
            // The crate panics on some unions of expressions.
            let ask = |together| {
                catch_unwind(AssertUnwindSafe(|| unfit(self, &lexemes, together))).ok().flatten()
            };
            match ask(true).or_else(|| ask(false)) {
                Some(unfit) if unfit.is_empty() => return,
                Some(unfit) => self.opened.extend(unfit),
                None => break,
            }
        }
        self.single = true;
        Followers::of(self); // takes apart what is left
    }
}

/// The lexemes of a grammar, each with the bytes that may come after it.
struct Followers<'a> {
    lexing: &'a mut Lexing,
    lexemes: HashMap<NodeId, ByteSet>,
    rules: HashMap<RuleId, ByteSet>,
    waiting: Vec<RuleId>,
}

impl Followers<'_> {
    fn of(lexing: &mut Lexing) -> Vec<(NodeId, ByteSet)> {
        let root = lexing.grammar.root;
        let mut followers = Followers {
            lexing,
            lexemes: HashMap::new(),
            rules: HashMap::from([(root, ByteSet::default())]),
            waiting: vec![root],
        };
        while let Some(rule) = followers.waiting.pop() {
            let body = followers.lexing.grammar.rules[rule];
            let follow = followers.rules[&rule];
            followers.visit(body, follow);
        }
        let mut lexemes: Vec<_> = followers.lexemes.into_iter().collect();
        lexemes.sort_unstable_by_key(|&(id, _)| id); // so that nothing depends on the table's order
        lexemes
    }

    fn visit(&mut self, id: NodeId, follow: ByteSet) {
        if self.lexing.is_empty(id) {
            return;
        }
        if let Some(lexeme) = self.lexing.lexeme(id) {
            self.lexemes.entry(lexeme).or_default().join(follow);
            return;
        }
        match self.lexing.node(id).clone() {
            Node::Rule(rule) => {
                let fresh = !self.rules.contains_key(&rule);
                if self.rules.entry(rule).or_default().join(follow) || fresh {
                    self.waiting.push(rule);
                }
            }
            Node::Sequence(_) | Node::Text(_) => {
                let mut follow = follow;
                for part in self.lexing.parts(id).into_iter().rev() {
                    self.visit(part, follow);
                    let facts = self.lexing.facts[part];
                    let after = follow;
                    follow = facts.first;
                    if facts.nullable {
                        follow.join(after);
                    }
                }
            }
            Node::Choice(items) => items.into_iter().for_each(|item| self.visit(item, follow)),
            Node::Repeat(item, _, max) => {
                let mut follow = follow;
                if max != Some(1) {
                    follow.join(self.lexing.facts[item].first);
                }
                self.visit(item, follow);
            }
            Node::Chars(_) | Node::Token { .. } => (),
        }
    }
}

/// Those that must be taken apart. `together`: one question for each, about all others. None: that
/// takes too long to find out.
fn unfit(lexing: &Lexing, lexemes: &[(NodeId, ByteSet)], together: bool) -> Option<Vec<NodeId>> {
    let mut expressions = Expressions::new(lexing);
    // In this order the recursion is not as deep as the rules are.
    for &rule in lexing.order.iter().filter(|&&rule| lexing.rules[rule].regular) {
        expressions.of(lexing.grammar.rules[rule])?;
    }
    let mut questions = Vec::new();
    for &(long, _) in lexemes.iter().filter(|&&(id, _)| !lexing.is_character(id)) {
        let first = lexing.facts[long].first;
        let mut continued = Vec::new();
        for &(short, follow) in lexemes {
            if !follow.is_empty() && lexing.facts[short].first.meets(&first) {
                continued.push(expressions.continued(short, follow)?);
            }
        }
        let long_regex = expressions.of(long)?;
        let asked = if together { continued.len().max(1) } else { 1 };
        for others in continued.chunks(asked) {
            let question = RegexAst::And(vec![
                RegexAst::ExprRef(long_regex),
                RegexAst::Or(others.iter().map(|&other| RegexAst::ExprRef(other)).collect()),
            ]);
            questions.push((long, expressions.builder.mk(&question).ok()?));
        }
    }
    let mut expressions = expressions.builder.into_exprset();
    let mut relevance = RelevanceCache::new();
    let most = expressions.cost() + QUESTIONS_FUEL;
    let mut unfit = Vec::new();
    for (long, question) in questions {
        if unfit.last() == Some(&long) {
            continue;
        }
        if expressions.cost() > most {
            return None;
        }
        let answer = relevance.is_non_empty_limited(&mut expressions, question, QUESTION_FUEL);
        if answer.unwrap_or(true) {
            unfit.push(long);
        }
    }
    Some(unfit)
}

struct Expressions<'a> {
    lexing: &'a Lexing,
    builder: RegexBuilder,
    known: HashMap<NodeId, ExprRef>,
    continued: HashMap<NodeId, ExprRef>,
}

impl Expressions<'_> {
    fn new(lexing: &Lexing) -> Expressions<'_> {
        Expressions {
            lexing,
            builder: RegexBuilder::new(),
            known: HashMap::new(),
            continued: HashMap::new(),
        }
    }

    fn all_of(&mut self, items: &[NodeId]) -> Option<Vec<RegexAst>> {
        items.iter().map(|&item| self.of(item).map(RegexAst::ExprRef)).collect()
    }

    fn of(&mut self, id: NodeId) -> Option<ExprRef> {
        if let Some(&known) = self.known.get(&id) {
            return Some(known);
        }
        let regex = match self.lexing.node(id) {
            Node::Text(text) => RegexAst::Literal(text.clone()),
            Node::Chars(ranges) => RegexAst::Regex(class(ranges)),
            Node::Token { .. } => return None,
            Node::Rule(rule) => RegexAst::ExprRef(self.of(self.lexing.grammar.rules[*rule])?),
            Node::Sequence(items) => RegexAst::Concat(self.all_of(items)?),
            Node::Choice(items) => RegexAst::Or(self.all_of(items)?),
            Node::Repeat(item, min, max) => RegexAst::Repeat(
                Box::new(RegexAst::ExprRef(self.of(*item)?)),
                *min,
                max.unwrap_or(u32::MAX),
            ),
        };
        let made = self.builder.mk(&regex).ok()?;
        self.known.insert(id, made);
        Some(made)
    }

    /// The texts of a lexeme, except the empty one, with a byte of `follow` after them, and what
    /// begins so.
    fn continued(&mut self, id: NodeId, follow: ByteSet) -> Option<ExprRef> {
        if let Some(&known) = self.continued.get(&id) {
            return Some(known);
        }
        let byte = || ByteSet([u64::MAX; 4]).regex();
        let any = || RegexAst::Repeat(Box::new(byte()), 0, u32::MAX);
        let mut texts = RegexAst::ExprRef(self.of(id)?);
        if self.lexing.facts[id].nullable {
            texts = RegexAst::And(vec![texts, RegexAst::Concat(vec![byte(), any()])]);
        }
        let made = self.builder.mk(&RegexAst::Concat(vec![texts, follow.regex(), any()])).ok()?;
        self.continued.insert(id, made);
        Some(made)
    }
}
