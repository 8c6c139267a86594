//! Lark of a GBNF grammar whose lexemes are chosen.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use crate::gbnf::{Node, NodeId, RuleId};
use crate::gbnf_lark::{Lexing, Tokens};

/// Of the Lark text; CheckGrammar has the same limit.
const LARK_BYTES_MAX: usize = 512 << 10;

/// As a regular expression that may stand between slashes.
pub fn class(ranges: &[(char, char)]) -> String {
    let mut out = String::from("[");
    for &(first, last) in ranges {
        let _ = write!(out, "\\x{{{:X}}}-\\x{{{:X}}}", u32::from(first), u32::from(last));
    }
    out + "]"
}

fn literal(text: &str) -> String {
    // JSON does not escape it, and Lark wants it escaped.
    serde_json::Value::from(text).to_string().replace('\x7F', "\\u007f")
}

/// Lark has a rule `r0` for each that is no lexeme, and a terminal `T0` for each rule and `L0` for
/// each lexeme.
pub struct Writer<'a> {
    lexing: &'a Lexing,
    tokens: &'a dyn Tokens,
    out: String,
    lexemes: HashMap<NodeId, usize>,
    rules: HashSet<RuleId>,
    terminals: HashSet<RuleId>,
    waiting: Vec<Part>,
}

enum Part {
    Rule(RuleId),
    Terminal(RuleId),
    Lexeme(NodeId),
}

impl<'a> Writer<'a> {
    pub fn new(lexing: &'a Lexing, tokens: &'a dyn Tokens) -> Writer<'a> {
        Writer {
            lexing,
            tokens,
            out: String::new(),
            lexemes: HashMap::new(),
            rules: HashSet::new(),
            terminals: HashSet::new(),
            waiting: Vec::new(),
        }
    }

    pub fn write(mut self) -> Result<String, String> {
        let start = self.rule(self.lexing.grammar.root);
        self.out = format!("start: {start}\n");
        while let Some(part) = self.waiting.pop() {
            let rules = &self.lexing.grammar.rules;
            let line = match part {
                Part::Rule(rule) => format!("r{rule}: {}\n", self.symbol(rules[rule])?),
                Part::Terminal(rule) => format!("T{rule}: {}\n", self.terminal(rules[rule])),
                Part::Lexeme(id) => {
                    let number = self.lexemes[&id];
                    format!("L{number}: {}\n", self.terminal(id))
                }
            };
            self.out += &line;
            if self.out.len() > LARK_BYTES_MAX {
                return Err(format!("it is more than {} KiB of Lark", LARK_BYTES_MAX >> 10));
            }
        }
        Ok(self.out)
    }

    fn rule(&mut self, rule: RuleId) -> String {
        if self.rules.insert(rule) {
            self.waiting.push(Part::Rule(rule));
        }
        format!("r{rule}")
    }

    fn symbol(&mut self, id: NodeId) -> Result<String, String> {
        if self.lexing.is_empty(id) {
            return Ok("\"\"".to_string());
        }
        if let Some(id) = self.lexing.lexeme(id) {
            let next = self.lexemes.len();
            let number = *self.lexemes.entry(id).or_insert(next);
            if number == next {
                self.waiting.push(Part::Lexeme(id));
            }
            return Ok(format!("L{number}"));
        }
        let lexing = self.lexing;
        let mut all = |items: &[NodeId], between: &str| {
            let symbols: Result<Vec<_>, _> = items.iter().map(|&item| self.symbol(item)).collect();
            symbols.map(|symbols| format!("({})", symbols.join(between)))
        };
        match lexing.node(id) {
            Node::Rule(rule) => Ok(self.rule(*rule)),
            Node::Token { token, negated } => self.tokens.write(token, *negated),
            Node::Choice(items) => all(items, " | "),
            Node::Repeat(item, min, max) => {
                Ok(format!("({}){}", self.symbol(*item)?, times(*min, *max)))
            }
            _ => all(&lexing.parts[&id], " "),
        }
    }

    fn terminal(&mut self, id: NodeId) -> String {
        let lexing = self.lexing;
        let mut all = |items: &[NodeId], between: &str| {
            let parts: Vec<_> = items.iter().map(|&item| self.terminal(item)).collect();
            format!("({})", parts.join(between))
        };
        match lexing.node(id) {
            Node::Text(text) => literal(text),
            Node::Chars(ranges) => format!("/{}/", class(ranges)),
            Node::Rule(rule) => {
                if self.terminals.insert(*rule) {
                    self.waiting.push(Part::Terminal(*rule));
                }
                format!("T{rule}")
            }
            Node::Sequence(items) if items.is_empty() => "\"\"".to_string(),
            Node::Sequence(items) => all(items, " "),
            Node::Choice(items) => all(items, " | "),
            Node::Repeat(item, min, max) => {
                format!("({}){}", self.terminal(*item), times(*min, *max))
            }
            Node::Token { .. } => unreachable!("a lexeme has no tokens"),
        }
    }
}

fn times(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".to_string(),
        (1, None) => "+".to_string(),
        (0, Some(1)) => "?".to_string(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}
