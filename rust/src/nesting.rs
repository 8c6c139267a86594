//! Limits the nesting of a template's source. minijinja parses, compiles and frees a template by
//! recursion and bounds only part of it, so a source that nests too deeply would end the process.
//! This pass over the tokens refuses such a source first.

use minijinja::machinery::{Span, Token, Tokenizer};
use minijinja::syntax::SyntaxConfig;

use crate::Failure;

/// Brackets and blocks ({% if %} ... {% endif %}) that may be open at one place. Lower than the
/// limit of minijinja's parser, so that the message is always this one.
const OPEN_MAX: usize = 64;
/// Levels of the syntax tree: `not not x`, `a ~ b ~ c`, `x.y.z`, `x | f | g`, `{% elif %}` and
/// brackets add one each. Chat templates stay below 40; a level takes up to 1 KiB of stack.
const LEVELS_MAX: usize = 400;

/// One open bracket, or a whole tag. Commas separate siblings, which do not add up.
#[derive(Default)]
struct Group {
    levels: usize,       // of the current sibling, without the contents of its brackets
    inner_levels: usize, // maximum over the brackets that this sibling has closed
    most: usize,         // maximum over the earlier siblings
}

impl Group {
    fn end_sibling(&mut self) {
        self.most = self.most.max(self.levels + self.inner_levels);
        self.levels = 0;
        self.inner_levels = 0;
    }
}

/// The current tag and the blocks around it.
#[derive(Default)]
struct Scan {
    groups: Vec<Group>, // the tag itself, then its open brackets; empty outside of tags
    levels: usize,      // of all groups
    blocks: Vec<usize>, // levels that each open block adds
    block_levels: usize,
    opens_block: bool,
    assigns: bool, // this tag has a '=' outside of brackets
    is_set: bool,
}

enum Excess {
    Open,
    Levels,
}

fn is_operator(name: &str) -> bool {
    matches!(name, "not" | "and" | "or" | "is" | "in" | "if" | "else")
}

fn begins_block(name: &str) -> bool {
    matches!(name, "if" | "for" | "with" | "macro" | "call" | "filter" | "autoescape" | "block")
}

impl Scan {
    fn take(&mut self, token: &Token, first_of_block: bool) -> Result<(), Excess> {
        match token {
            Token::TemplateData(_) => return Ok(()),
            Token::VariableStart | Token::BlockStart => self.begin_tag(),
            Token::VariableEnd | Token::BlockEnd => return self.end_tag(),
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                self.add_level();
                self.groups.push(Group::default());
            }
            Token::BracketClose | Token::ParenClose | Token::BraceClose => self.close_bracket(),
            Token::Comma | Token::Colon => {
                if let Some(group) = self.groups.last_mut() {
                    self.levels -= group.levels;
                    group.end_sibling();
                }
            }
            Token::Ident(name) if first_of_block => self.statement(name),
            Token::Ident(name) if !is_operator(name) => {}
            Token::Str(_) | Token::String(_) => {}
            Token::Int(_) | Token::Int128(_) | Token::Float(_) => {}
            Token::Assign => self.assigns |= self.groups.len() == 1,
            _ => self.add_level(),
        }
        self.check(0)
    }

    fn check(&self, inner_levels: usize) -> Result<(), Excess> {
        if self.blocks.len() + self.groups.len() > OPEN_MAX + 1 {
            return Err(Excess::Open);
        }
        if self.block_levels + self.levels + inner_levels > LEVELS_MAX {
            return Err(Excess::Levels);
        }
        Ok(())
    }

    fn add_level(&mut self) {
        if let Some(group) = self.groups.last_mut() {
            group.levels += 1;
            self.levels += 1;
        }
    }

    fn begin_tag(&mut self) {
        self.groups.clear();
        self.groups.push(Group::default());
        self.levels = 0;
        self.opens_block = false;
        self.assigns = false;
        self.is_set = false;
    }

    fn close_bracket(&mut self) {
        if self.groups.len() < 2 {
            return; // it was never opened: the parser reports that
        }
        if let Some(mut closed) = self.groups.pop() {
            self.levels -= closed.levels;
            closed.end_sibling();
            if let Some(outer) = self.groups.last_mut() {
                outer.inner_levels = outer.inner_levels.max(closed.most);
            }
        }
    }

    fn statement(&mut self, name: &str) {
        if name == "elif" {
            // An elif is an if inside the previous one's else.
            if let Some(block) = self.blocks.last_mut() {
                *block += 1;
                self.block_levels += 1;
            }
        } else if name.starts_with("end") {
            self.block_levels -= self.blocks.pop().unwrap_or(0);
        }
        self.opens_block = begins_block(name);
        self.is_set = name == "set";
    }

    fn end_tag(&mut self) -> Result<(), Excess> {
        while self.groups.len() > 1 {
            self.close_bracket();
        }
        let mut tag = self.groups.pop().unwrap_or_default();
        tag.end_sibling();
        self.levels = 0;
        let checked = self.check(tag.most);
        if self.opens_block || (self.is_set && !self.assigns) {
            self.blocks.push(1);
            self.block_levels += 1;
        }
        checked
    }
}

fn describe(excess: Excess, at: Span) -> Failure {
    let what = match excess {
        Excess::Open => format!("more than {OPEN_MAX} brackets and blocks inside each other"),
        Excess::Levels => format!(
            "more than {LEVELS_MAX} operators, attributes, filters, brackets and elifs inside \
             each other"
        ),
    };
    Failure::Limit(format!(
        "{what} (chat template, line {}, column {})",
        at.start_line,
        at.start_col + 1
    ))
}

/// Refuses a source that nests too deeply to parse. The parser reports its other errors.
pub fn check(source: &str, name: &str, syntax: SyntaxConfig) -> Result<(), Failure> {
    let mut tokens = Tokenizer::new(source, name, false, syntax);
    let mut scan = Scan::default();
    let mut first_of_block = false;
    let mut last = Span::default();
    while let Ok(Some((token, span))) = tokens.next_token() {
        scan.take(&token, first_of_block).map_err(|excess| describe(excess, span))?;
        first_of_block = matches!(token, Token::BlockStart);
        last = span;
    }
    // The parser builds the expressions of a tag that does not end, too.
    scan.end_tag().map_err(|excess| describe(excess, last))
}
