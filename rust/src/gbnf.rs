//! GBNF, the notation of llama.cpp's grammars: its parser. `gbnf_lark` writes what it reads in Lark.
//!
//! The reference is llama.cpp's grammars/README.md. What xgrammar (SGLang, vLLM) also takes is taken
//! too: a rule that goes on in the next line without brackets, and its escapes.

use std::collections::HashMap;

use crate::gbnf_chars::{complement, merged, scalars, LAST_CHAR};

/// Brackets that are open at one place. The parser and the passes after it recurse.
const OPEN_MAX: usize = 64;
/// A count of repetitions.
const COUNT_MAX: u32 = 100_000;
/// Repetition signs in a row, as in `x*+?`; each is a level of the syntax tree.
const SIGNS_MAX: usize = 4;

/// Index into `Gbnf::nodes`.
pub type NodeId = usize;
/// Index into `Gbnf::rules`.
pub type RuleId = usize;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TokenRef {
    Id(u32),
    /// With its angle brackets.
    Text(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    Text(String),
    /// One character of these ranges, which are sorted and apart.
    Chars(Vec<(char, char)>),
    Token {
        token: TokenRef,
        negated: bool,
    },
    Rule(RuleId),
    Sequence(Vec<NodeId>),
    /// Without alternatives nothing matches.
    Choice(Vec<NodeId>),
    Repeat(NodeId, u32, Option<u32>),
}

pub struct Gbnf {
    pub nodes: Vec<Node>,
    pub rules: Vec<NodeId>,
    pub root: RuleId,
}

impl Gbnf {
    pub fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }
}

/// Whether the text has the form of GBNF: a line that defines a rule with `::=`.
pub fn has_form(text: &str) -> bool {
    text.lines().any(|line| match line.split_once("::=") {
        Some((name, _)) => !name.contains(['"', '#', '/', '[']),
        None => false,
    })
}

/// The error is one line with its place.
pub fn parse(text: &str) -> Result<Gbnf, String> {
    let mut parser = Parser {
        text,
        at: 0,
        open: 0,
        nodes: Vec::new(),
        names: HashMap::new(),
        rules: Vec::new(),
    };
    match parser.grammar() {
        Ok(root) => {
            let rules = parser.rules.iter().map(|rule| rule.body.unwrap_or_default()).collect();
            Ok(Gbnf { nodes: parser.nodes, rules, root })
        }
        Err(Fault { at, what }) => Err(located(text, at, &what)),
    }
}

fn located(text: &str, at: usize, what: &str) -> String {
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    format!("line {line}, column {column}: {what}")
}

struct Fault {
    at: usize,
    what: String,
}

struct Rule {
    body: Option<NodeId>,
    first_use: usize, // bytes
}

struct Parser<'a> {
    text: &'a str,
    at: usize, // bytes
    open: usize,
    nodes: Vec<Node>,
    names: HashMap<&'a str, RuleId>,
    rules: Vec<Rule>,
}

type Parsed<T> = Result<T, Fault>;

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn fail<T>(&self, what: impl Into<String>) -> Parsed<T> {
        self.fail_at(self.at, what)
    }

    fn fail_at<T>(&self, at: usize, what: impl Into<String>) -> Parsed<T> {
        Err(Fault { at, what: what.into() })
    }

    /// What is here, for messages.
    fn here(&self) -> String {
        match self.peek() {
            None => "the grammar ends".to_string(),
            Some('\n' | '\r') => "the line ends".to_string(),
            Some(c) => format!("there is {c:?}"),
        }
    }

    fn take(&mut self, wanted: char) -> bool {
        let here = self.peek() == Some(wanted);
        if here {
            self.at += wanted.len_utf8();
        }
        here
    }

    fn expect(&mut self, wanted: char) -> Parsed<()> {
        if self.take(wanted) {
            return Ok(());
        }
        self.fail(format!("expected {wanted:?}, but {}", self.here()))
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// White space, line ends and comments.
    fn space(&mut self) {
        loop {
            self.take_while(|c| matches!(c, ' ' | '\t' | '\r' | '\n'));
            if self.peek() != Some('#') {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn rule_named(&mut self, name: &'a str, at: usize) -> RuleId {
        *self.names.entry(name).or_insert_with(|| {
            self.rules.push(Rule { body: None, first_use: at });
            self.rules.len() - 1
        })
    }

    fn grammar(&mut self) -> Parsed<RuleId> {
        self.space();
        while self.peek().is_some() {
            let begin = self.at;
            let name = self.take_while(is_name);
            if name.is_empty() {
                return self.fail(format!("expected the name of a rule, but {}", self.here()));
            }
            self.space();
            if !self.rest().starts_with("::=") {
                return self.fail(format!("expected ::= after {name:?}, but {}", self.here()));
            }
            self.at += "::=".len();
            let rule = self.rule_named(name, begin);
            let body = self.alternatives()?;
            // As in llama.cpp the last definition of a rule holds.
            self.rules[rule].body = Some(body);
            if self.peek().is_some() && !self.at_definition() {
                return self
                    .fail(format!("expected a symbol or the next rule, but {}", self.here()));
            }
        }
        let undefined = self.names.iter().filter(|(_, &rule)| self.rules[rule].body.is_none());
        if let Some((name, &rule)) = undefined.min_by_key(|(_, &rule)| self.rules[rule].first_use) {
            let at = self.rules[rule].first_use;
            return self.fail_at(at, format!("the rule {name:?} is not defined"));
        }
        match self.names.get("root") {
            Some(&root) => Ok(root),
            None => self.fail_at(0, "there is no rule \"root\", with which a grammar begins"),
        }
    }

    fn at_definition(&self) -> bool {
        let rest = self.rest();
        let name = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        name > 0 && rest[name..].trim_start().starts_with("::=")
    }

    fn alternatives(&mut self) -> Parsed<NodeId> {
        let mut alternatives = vec![self.sequence()?];
        while self.take('|') {
            alternatives.push(self.sequence()?);
        }
        Ok(match alternatives.len() {
            1 => alternatives[0],
            _ => self.add(Node::Choice(alternatives)),
        })
    }

    fn sequence(&mut self) -> Parsed<NodeId> {
        let mut items = Vec::new();
        self.space();
        while let Some(c) = self.peek() {
            if matches!(c, '|' | ')') || (is_name(c) && self.at_definition()) {
                break;
            }
            if matches!(c, '*' | '+' | '?' | '{') {
                return self.fail(format!("there is nothing before {c:?} to repeat"));
            }
            let item = self.item(c)?;
            let item = self.repeated(item)?;
            items.push(item);
        }
        Ok(match items.len() {
            1 => items[0],
            _ => self.add(Node::Sequence(items)),
        })
    }

    fn item(&mut self, c: char) -> Parsed<NodeId> {
        let begin = self.at;
        match c {
            '"' => self.literal(),
            '[' => self.class(),
            '<' | '!' => self.token(),
            '(' => {
                if self.open == OPEN_MAX {
                    return self.fail(format!("more than {OPEN_MAX} brackets are open"));
                }
                self.at += 1;
                self.open += 1;
                let inner = self.alternatives()?;
                self.open -= 1;
                self.expect(')')?;
                Ok(inner)
            }
            '.' => {
                self.at += 1;
                Ok(self.add(Node::Chars(vec![('\0', char::MAX)])))
            }
            c if is_name(c) => {
                let name = self.take_while(is_name);
                let rule = self.rule_named(name, begin);
                Ok(self.add(Node::Rule(rule)))
            }
            '\'' => self.fail("expected a symbol; a text is in double quotes"),
            '=' | ':' => self.fail(format!("expected ::= or a symbol, but {}", self.here())),
            _ => self.fail(format!("expected a symbol, but {}", self.here())),
        }
    }

    /// The signs of repetition after an item.
    fn repeated(&mut self, mut item: NodeId) -> Parsed<NodeId> {
        for signs in 0.. {
            self.space();
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => (0, None),
                _ => break,
            };
            if signs == SIGNS_MAX {
                return self.fail(format!("more than {SIGNS_MAX} signs of repetition in a row"));
            }
            let (min, max) = match self.take('{') {
                true => self.counts()?,
                false => {
                    self.at += 1;
                    (min, max)
                }
            };
            item = self.add(Node::Repeat(item, min, max));
        }
        Ok(item)
    }

    /// After the opening brace.
    fn counts(&mut self) -> Parsed<(u32, Option<u32>)> {
        let begin = self.at;
        self.space();
        let min = self.count()?;
        self.space();
        let mut max = Some(min);
        if self.take(',') {
            self.space();
            max = match self.peek() {
                Some('}') => None,
                _ => Some(self.count()?),
            };
            self.space();
        }
        self.expect('}')?;
        if max.is_some_and(|max| max < min) {
            return self
                .fail_at(begin, format!("at least {min}, but at most {}", max.unwrap_or(0)));
        }
        Ok((min, max))
    }

    fn count(&mut self) -> Parsed<u32> {
        let begin = self.at;
        let digits = self.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return self.fail(format!("expected a count, but {}", self.here()));
        }
        match digits.parse() {
            Ok(count) if count <= COUNT_MAX => Ok(count),
            _ => self.fail_at(begin, format!("a count above {COUNT_MAX}")),
        }
    }

    fn literal(&mut self) -> Parsed<NodeId> {
        let begin = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None => return self.fail_at(begin, "a text without its closing quote"),
                Some('"') => break,
                Some(_) => (),
            }
            let at = self.at;
            match char::from_u32(self.character()?) {
                Some(c) => text.push(c),
                None => return self.fail_at(at, "half of a surrogate pair; use \\U and 8 digits"),
            }
        }
        self.at += 1;
        Ok(self.add(Node::Text(text)))
    }

    /// A character or an escape, as a code point that may be a surrogate.
    fn character(&mut self) -> Parsed<u32> {
        let begin = self.at;
        let Some(c) = self.peek() else { return self.fail("the grammar ends in a text") };
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c.into());
        }
        let Some(c) = self.peek() else { return self.fail("the grammar ends in an escape") };
        self.at += c.len_utf8();
        let digits = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            'n' => return Ok(0x0A),
            'r' => return Ok(0x0D),
            't' => return Ok(0x09),
            'a' => return Ok(0x07),
            'b' => return Ok(0x08),
            'v' => return Ok(0x0B),
            'f' => return Ok(0x0C),
            'e' => return Ok(0x1B),
            '0' => return Ok(0x00),
            '\\' | '"' | '\'' | '[' | ']' | '-' | '^' | '/' | '?' => return Ok(c.into()),
            _ => return self.fail_at(begin, format!("no such escape: \\{}", c.escape_debug())),
        };
        let hex = self.rest().get(..digits).unwrap_or("");
        let valid = hex.len() == digits && hex.bytes().all(|b| b.is_ascii_hexdigit());
        let value = if valid { u32::from_str_radix(hex, 16).ok() } else { None };
        match value {
            Some(value) if value <= LAST_CHAR => {
                self.at += digits;
                Ok(value)
            }
            Some(_) => self.fail_at(begin, "beyond the last code point, \\U0010FFFF"),
            None => self.fail_at(begin, format!("\\{c} needs {digits} hexadecimal digits")),
        }
    }

    fn class(&mut self) -> Parsed<NodeId> {
        let begin = self.at;
        self.at += 1;
        let negated = self.take('^');
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None => {
                    return self.fail_at(begin, "a character class without its closing bracket")
                }
                Some(']') => break,
                Some(_) => (),
            }
            let at = self.at;
            let first = self.character()?;
            // A dash before the closing bracket is a character.
            let ranged = self.peek() == Some('-') && !self.rest().starts_with("-]");
            let last = match ranged {
                true => {
                    self.at += 1;
                    self.character()?
                }
                false => first,
            };
            if last < first {
                return self.fail_at(at, "the range ends before it begins");
            }
            ranges.push((first, last));
        }
        self.at += 1;
        if ranges.is_empty() {
            return self.fail_at(begin, "a character class without characters");
        }
        let ranges = scalars(&if negated { complement(ranges) } else { merged(ranges) });
        Ok(self.add(Node::Chars(ranges)))
    }

    fn token(&mut self) -> Parsed<NodeId> {
        let negated = self.take('!');
        let begin = self.at;
        self.expect('<')?;
        let end = self.rest().find(['>', '\n']).unwrap_or(self.rest().len());
        let name = &self.rest()[..end];
        self.at += end;
        if !self.take('>') {
            return self.fail_at(begin, "a token without its closing '>'");
        }
        let id = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let token = match id.map(str::parse) {
            Some(Ok(id)) => TokenRef::Id(id),
            Some(Err(_)) => return self.fail_at(begin, "expected a token's id in <[ ]>"),
            None if name.is_empty() => return self.fail_at(begin, "a token without a name"),
            None => TokenRef::Text(format!("<{name}>")),
        };
        Ok(self.add(Node::Token { token, negated }))
    }
}
