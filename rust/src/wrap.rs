//! Jinja2's filter wordwrap: Python's textwrap.

use std::collections::VecDeque;

use minijinja::{Error, State, Value};

use crate::arguments::{bind, flag, given};
use crate::budget::{charge, to_text};
use crate::characters as ch;
use crate::filters::failure;
use crate::lists::integer_argument;
use crate::strings;
use crate::texts::text_of;

/// Where a hyphenated word may be broken: after a hyphen between letters, as Python's textwrap
/// says it.
fn hyphen_breaks(word: &[char]) -> Vec<usize> {
    let is_letter = |at: Option<usize>| {
        at.and_then(|at| word.get(at))
            .is_some_and(|c| ch::is_word(*c) && !c.is_numeric() && *c != '_')
    };
    let before = |at: usize, by: usize| at.checked_sub(by);
    (0..word.len())
        .filter(|at| word[*at] == '-')
        .filter(|at| {
            is_letter(before(*at, 1))
                && (is_letter(before(*at, 2))
                    || (before(*at, 2).is_some_and(|i| word[i] == '-')
                        && is_letter(before(*at, 3))))
        })
        .filter(|at| {
            let next = if word.get(at + 2) == Some(&'-') { at + 3 } else { at + 2 };
            is_letter(Some(at + 1)) && is_letter(Some(next))
        })
        .map(|at| at + 1)
        .collect()
}

/// White space and words in turn, words in pieces.
fn chunks(line: &str, on_hyphens: bool) -> Vec<Vec<char>> {
    let mut chunks: Vec<Vec<char>> = Vec::new();
    for c in line.chars() {
        match chunks.last_mut() {
            Some(chunk) if ch::is_space(chunk[0]) == ch::is_space(c) => chunk.push(c),
            _ => chunks.push(vec![c]),
        }
    }
    if !on_hyphens {
        return chunks;
    }
    let mut pieces = Vec::new();
    for chunk in chunks {
        let mut begin = 0;
        for end in hyphen_breaks(&chunk).into_iter().chain([chunk.len()]) {
            pieces.push(chunk[begin..end].to_vec());
            begin = end;
        }
    }
    pieces
}

/// As much of a chunk that is longer than a line as goes into `room`.
fn long_part(chunk: &[char], room: usize, on_hyphens: bool) -> usize {
    let hyphen = chunk[..room.min(chunk.len())].iter().rposition(|c| *c == '-');
    match hyphen {
        Some(at) if on_hyphens && at > 0 && chunk[..at].iter().any(|c| *c != '-') => at + 1,
        _ => room,
    }
}

fn wrap(line: &str, width: usize, break_long: bool, on_hyphens: bool) -> Vec<String> {
    let is_blank = |chunk: &Vec<char>| chunk.iter().all(|c| ch::is_space(*c));
    let mut rest: VecDeque<Vec<char>> = chunks(line, on_hyphens).into();
    let mut lines: Vec<String> = Vec::new();
    while !rest.is_empty() {
        if !lines.is_empty() && rest.front().is_some_and(is_blank) {
            rest.pop_front();
        }
        let mut line: Vec<Vec<char>> = Vec::new();
        let mut length = 0;
        while let Some(chunk) = rest.pop_front_if(|chunk| length + chunk.len() <= width) {
            length += chunk.len();
            line.push(chunk);
        }
        if let Some(chunk) = rest.front_mut().filter(|chunk| chunk.len() > width) {
            if break_long {
                let room = if width < 1 { 1 } else { width - length };
                let end = long_part(chunk, room, on_hyphens);
                line.push(chunk.drain(..end).collect());
            } else if line.is_empty() {
                line.extend(rest.pop_front());
            }
        }
        if line.last().is_some_and(is_blank) {
            line.pop();
        }
        if !line.is_empty() {
            lines.push(line.concat().into_iter().collect());
        }
    }
    lines
}

pub fn wordwrap(_: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, width, break_long, with, on_hyphens] = bind(
        "wordwrap",
        ["s", "width", "break_long_words", "wrapstring", "break_on_hyphens"],
        args,
    )?;
    let text = text_of(value)?;
    let width = integer_argument("wordwrap", width, 79)?;
    if width == 0 {
        return Err(failure("wordwrap needs a width of at least 1"));
    }
    let with = given(with).map_or(Ok("\n".to_string()), |with| to_text(&with))?;
    let (break_long, on_hyphens) = (flag(break_long, true), flag(on_hyphens, true));
    charge(text.len().saturating_mul(32))?; // characters in chunks
    let mut lines = Vec::new();
    for line in strings::lines(&text, false) {
        let wrapped = wrap(line, width, break_long, on_hyphens);
        charge(wrapped.len().saturating_mul(with.len() + 32))?;
        lines.push(wrapped.join(&with));
    }
    Ok(Value::from(lines.join(&with)))
}
