//! Escapes in string literals that Python knows and minijinja would leave as they stand.

use minijinja::machinery::{Token, Tokenizer};
use minijinja::syntax::SyntaxConfig;

use crate::Failure;

/// Refuses a source with one of them.
pub fn check(source: &str, name: &str, syntax: SyntaxConfig) -> Result<(), Failure> {
    if !source.contains('\\') {
        return Ok(());
    }
    let mut tokens = Tokenizer::new(source, name, false, syntax);
    while let Ok(Some((token, span))) = tokens.next_token() {
        let written = source.get(span.start_offset as usize..span.end_offset as usize);
        let (Token::String(_), Some(written)) = (token, written) else { continue };
        let mut rest = written.chars();
        while let Some(c) = rest.next() {
            let escaped = if c == '\\' { rest.next() } else { None };
            if let Some(escaped @ ('U' | 'N' | '\n' | 'a' | 'v')) = escaped {
                return Err(Failure::Invalid(format!(
                    "the escape \\{} is not supported in a string (chat template, line {})",
                    escaped.escape_default(),
                    span.start_line
                )));
            }
        }
    }
    Ok(())
}
