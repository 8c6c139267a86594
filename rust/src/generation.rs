//! The tag {% generation %}, by which transformers finds the tokens of an answer to train on. It
//! writes nothing, and its body is a scope of its own, so it is compiled as {% with %}. The new
//! words have the length of the old ones: places in error messages stay right.

use minijinja::machinery::{Token, Tokenizer};
use minijinja::syntax::SyntaxConfig;

use crate::Failure;

const BEGIN: &str = "generation";
const END: &str = "endgeneration";

struct Tag<'a> {
    name: &'a str,
    offset: usize,
    line: u16,
    has_more: bool, // than the name
}

/// The first words of all tags. Ends early at an error, which the parser will report.
fn tags<'a>(source: &'a str, name: &'a str, syntax: &SyntaxConfig) -> Vec<Tag<'a>> {
    let mut tokens = Tokenizer::new(source, name, false, syntax.clone());
    let mut tags: Vec<Tag> = Vec::new();
    let (mut begins, mut within) = (false, false);
    while let Ok(Some((token, span))) = tokens.next_token() {
        match token {
            Token::Ident(word) if begins => {
                let (offset, line) = (span.start_offset as usize, span.start_line);
                tags.push(Tag { name: word, offset, line, has_more: false });
                within = true;
            }
            Token::BlockEnd => within = false,
            _ if within => tags.iter_mut().last().into_iter().for_each(|tag| tag.has_more = true),
            _ => {}
        }
        begins = matches!(token, Token::BlockStart);
    }
    tags
}

fn failure(message: String, line: u16) -> Failure {
    Failure::Invalid(format!("{message} (chat template, line {line})"))
}

/// The source with other tags in place of these. An error if one takes arguments or is not closed
/// by its own end.
pub fn without_tags(source: &str, name: &str, syntax: &SyntaxConfig) -> Result<String, Failure> {
    if !source.contains(BEGIN) {
        return Ok(source.to_string());
    }
    let mut made = source.to_string();
    let mut open: Vec<&str> = Vec::new(); // of the tags that may be confused
    for tag in tags(source, name, syntax) {
        match tag.name {
            "with" => open.push("endwith"),
            BEGIN => open.push(END),
            "endwith" | END => {
                let expected = open.pop().unwrap_or("no such tag");
                if expected != tag.name {
                    let message = format!("unexpected {}, expected {expected}", tag.name);
                    return Err(failure(message, tag.line));
                }
            }
            _ => {}
        }
        if !matches!(tag.name, BEGIN | END) {
            continue;
        }
        if tag.has_more {
            return Err(failure(format!("{{% {} %}} takes no arguments", tag.name), tag.line));
        }
        let word = if tag.name == BEGIN { "with" } else { "endwith" };
        let padded = format!("{word:size$}", size = tag.name.len());
        made.replace_range(tag.offset..tag.offset + tag.name.len(), &padded);
    }
    Ok(made)
}
