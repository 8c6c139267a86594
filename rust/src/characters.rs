//! What Python knows about characters and Rust's standard library says differently.

/// The zeros of decimal digits; nine more follow each.
const ZEROS: [u32; 37] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66,
    0xde6, 0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90,
    0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
];

pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

pub fn is_decimal(c: char) -> bool {
    let code = u32::from(c);
    ZEROS.iter().any(|zero| (*zero..zero + 10).contains(&code))
}

pub fn is_digit(c: char) -> bool {
    is_decimal(c)
        || matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉' | '①'..='⑨' | '⑴'..='⑼')
}

pub fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// The first letter of a word.
pub fn push_title(out: &mut String, c: char) {
    let mut upper = c.to_uppercase();
    out.extend(upper.next());
    out.extend(upper.flat_map(char::to_lowercase)); // ß becomes Ss
}

pub fn push_lower(out: &mut String, text: &str) {
    out.push_str(&text.to_lowercase());
}

pub fn capitalize(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    if let Some(first) = rest.next() {
        push_title(&mut out, first);
    }
    push_lower(&mut out, rest.as_str());
    out
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

/// Python's str.title.
pub fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            push_title(&mut out, c);
        }
        in_word = is_cased(c);
    }
    out
}

pub fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_uppercase() {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
    }
    out
}

pub fn fold_case(text: &str) -> String {
    text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

/// Some cased letter, and all of them of this case.
pub fn all_of_case(text: &str, is_wanted: fn(char) -> bool) -> bool {
    let mut cased = text.chars().filter(|c| is_cased(*c)).peekable();
    cased.peek().is_some() && cased.all(is_wanted)
}

pub fn is_title(text: &str) -> bool {
    let (mut in_word, mut found) = (false, false);
    for c in text.chars() {
        if is_cased(c) {
            if c.is_uppercase() == in_word {
                return false;
            }
            found = true;
        }
        in_word = is_cased(c);
    }
    found
}

pub fn is_identifier(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c == '_' || c.is_alphabetic())
        && chars.all(|c| c == '_' || c.is_alphanumeric())
}

pub fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}
