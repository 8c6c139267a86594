//! Where a long text can be divided so that the tokens of its parts are those of the whole.
//!
//! A place is between two characters of certain classes, such as "d" and the space in "and the". It
//! depends on the tokenizer which of them are good: each is tried with many texts on both sides. A
//! place is good if the pre-tokenizer always divides there and nothing else changes; or, where it
//! does not divide, if the model joins characters by merges alone and no token of the vocabulary
//! reaches over the place.

use unicode_categories::UnicodeCategories;

#[derive(Clone, Copy, PartialEq)]
enum Class {
    Letter, // of any script
    Ascii,  // such a letter
    Digit,  // ASCII
}

/// Between `before` and the first byte of `sign`; `after` follows the sign.
struct Place {
    before: Class,
    sign: &'static str,
    after: Class,
}

const PLACES: [Place; 20] = {
    use Class::{Ascii, Digit, Letter};
    const fn place(before: Class, sign: &'static str, after: Class) -> Place {
        Place { before, sign, after }
    }
    [
        place(Letter, " ", Letter),
        place(Letter, " ", Digit),
        place(Digit, " ", Letter),
        place(Digit, " ", Digit),
        place(Letter, "\n", Letter),
        place(Letter, "\n", Digit),
        place(Digit, "\n", Letter),
        place(Digit, "\n", Digit),
        place(Letter, ",", Letter),
        place(Letter, ",", Digit),
        place(Digit, ",", Letter),
        place(Digit, ",", Digit),
        place(Letter, ".", Letter),
        place(Letter, ".", Digit),
        place(Digit, ".", Letter),
        place(Digit, ".", Digit),
        place(Ascii, "", Digit),
        place(Letter, "。", Letter),
        place(Letter, "，", Letter),
        place(Letter, "、", Letter),
    ]
};

/// A part of a text as the model gets it, or an added token.
#[derive(Clone, PartialEq)]
pub struct Part {
    pub text: String,
    pub added: Option<u32>,
}

pub struct Added {
    pub text: String,
    pub alone: bool, // only as a word of its own
    pub takes_space_after: bool,
}

/// What is asked of a tokenizer.
pub trait Divisible {
    /// None: an error. `inside`: other text is before it.
    fn parts(&self, text: &str, inside: bool) -> Option<Vec<Part>>;
    fn added_tokens(&self) -> Vec<Added>;
    /// The model joins the characters of a part by merges, and by nothing else.
    fn merges_only(&self) -> bool;
    fn knows(&self, token: &str) -> bool;
    fn any_token(&self, is: &dyn Fn(&str) -> bool) -> bool;
}

impl Class {
    fn has(self, c: char) -> bool {
        match self {
            Class::Letter => c.is_letter(),
            Class::Ascii => c.is_ascii_alphabetic(),
            Class::Digit => c.is_ascii_digit(),
        }
    }

    fn ends_of_probes(self) -> Vec<&'static str> {
        const ASCII: &[&str] = &[
            "a",
            "Zq",
            "the 12 word",
            " x",
            "it's",
            "\n\nab",
            "don'T",
            "1a",
            "__a",
            "。a",
            "🙂 re",
            "a\u{301}b",
            "   s",
            "I'll",
            "ﬁt",
            "HTTP",
            "fooBar",
            "a.b",
            "\r\nx",
            "$x",
            "word ll",
        ];
        const OTHER: &[&str] = &[
            "é",
            "слово",
            " Ю",
            "1ж",
            "ωρα",
            "中",
            "a中",
            "中文",
            "。国",
            "の",
            "カタ",
            "한국",
            "שלום",
            "مرحبا",
            "हिंद",
            "ไทย",
            "ﬁ",
            "ª",
            "ß",
            "Σ",
            "'ы",
        ];
        match self {
            Class::Letter => [ASCII, OTHER].concat(),
            Class::Ascii => ASCII.to_vec(),
            Class::Digit => vec![
                "1", "12", "123", "1234", "12345", "a1", "1.5", " 7", "$9", "3,000", "x 42", "٣4",
                "-1", "1e9", "v2", "\n8",
            ],
        }
    }

    fn begins_of_probes(self) -> Vec<&'static str> {
        match self {
            Class::Letter | Class::Ascii => vec![
                "a",
                "s",
                "the",
                "Zed",
                "ll ",
                "a1",
                "re'n",
                "b\n",
                "x  y",
                "t's",
                "HTTP/1",
                "e\u{301}",
                "s\n\n ",
                "camelCase",
                "d。",
                "éa",
                "слово",
                "ΑΒ",
                "中",
                "国。",
                "のは",
                "한국",
                "שלום",
                "مر",
                "हिंदी",
                "ไทย",
            ],
            Class::Digit => {
                vec!["1", "12", "123", "1234", "0.5", "1a", "7 ", "5,5", "2\n", "9%", "2)"]
            }
        }
    }
}

fn char_before(text: &[u8]) -> Option<char> {
    let begin = text.iter().rposition(|byte| byte & 0xc0 != 0x80)?;
    std::str::from_utf8(&text[begin..]).ok()?.chars().next()
}

fn char_at(text: &[u8]) -> Option<char> {
    (1..=4.min(text.len())).find_map(|n| std::str::from_utf8(&text[..n]).ok()?.chars().next())
}

/// The good places, as bits.
pub struct Places(u32);

impl Places {
    pub fn find(tokenizer: &dyn Divisible) -> Places {
        let added = tokenizer.added_tokens();
        let mut good = 0;
        for (i, place) in PLACES.iter().enumerate() {
            if place.allowed_by(&added) && place.is_good(tokenizer) {
                good |= 1 << i;
            }
        }
        Places(good)
    }

    fn at(&self, text: &[u8], at: usize) -> bool {
        let (before, rest) = text.split_at(at);
        let may_begin =
            |byte: u8| matches!(byte, b' ' | b'\n' | b',' | b'.' | b'0'..=b'9' | 0xe3 | 0xef);
        may_begin(rest[0])
            && PLACES.iter().enumerate().any(|(i, place)| {
                self.0 & (1 << i) != 0
                    && rest.starts_with(place.sign.as_bytes())
                    && char_at(&rest[place.sign.len()..]).is_some_and(|c| place.after.has(c))
                    && char_before(before).is_some_and(|c| place.before.has(c))
            })
    }

    /// The first place from `from` on, or the end of the text.
    pub fn after(&self, text: &[u8], from: usize) -> usize {
        let from = from.max(1);
        if self.0 == 0 || from >= text.len() {
            return text.len();
        }
        (from..text.len()).find(|&at| self.at(text, at)).unwrap_or(text.len())
    }

    /// The last place up to `from`, or 0.
    pub fn before(&self, text: &[u8], from: usize) -> usize {
        if self.0 == 0 || text.is_empty() {
            return 0;
        }
        (1..=from.min(text.len() - 1)).rev().find(|&at| self.at(text, at)).unwrap_or(0)
    }
}

impl Place {
    /// What an added token looks at, and what it takes, must not reach over the place.
    fn allowed_by(&self, added: &[Added]) -> bool {
        let sign = self.sign.chars().next();
        let at_sign = |c: char| sign.map_or(self.after.has(c), |sign| sign == c);
        added.iter().all(|token| {
            let first = token.text.chars().next();
            let last = token.text.chars().next_back();
            let over = pairs(&token.text).any(|(a, b)| self.before.has(a) && at_sign(b));
            let takes_sign = token.takes_space_after && last.is_some_and(|c| self.before.has(c));
            let looks_back = token.alone && (sign.is_none() || first.is_some_and(at_sign));
            !over && !takes_sign && !looks_back
        })
    }

    fn is_good(&self, tokenizer: &dyn Divisible) -> bool {
        let parts_of = |texts: &[String], inside: bool| -> Option<Vec<Vec<Part>>> {
            texts.iter().map(|text| tokenizer.parts(text, inside)).collect()
        };
        let left: Vec<String> =
            self.before.ends_of_probes().iter().map(|s| s.to_string()).collect();
        let right: Vec<String> =
            self.after.begins_of_probes().iter().map(|s| format!("{}{s}", self.sign)).collect();
        let Some(left_parts) = parts_of(&left, false) else { return false };
        let Some(right_parts) = parts_of(&right, true) else { return false };
        let mut joined = false;
        for (l, left_of) in left.iter().zip(&left_parts) {
            for (r, right_of) in right.iter().zip(&right_parts) {
                let Some(whole) = tokenizer.parts(&format!("{l}{r}"), false) else { return false };
                let mut apart = left_of.clone();
                apart.extend(right_of.iter().cloned());
                if whole == apart {
                    continue;
                }
                let Some(together) = join(left_of, right_of) else { return false };
                if whole != together {
                    return false;
                }
                joined = true;
            }
        }
        !joined || self.no_token_reaches_over(tokenizer, &right_parts)
    }

    /// The sign as the model sees it must be a token, and no token may have it after `before`.
    fn no_token_reaches_over(&self, tokenizer: &dyn Divisible, right: &[Vec<Part>]) -> bool {
        if self.sign.is_empty() || !tokenizer.merges_only() {
            return false;
        }
        let sign_of = |parts: &Vec<Part>| parts.first().and_then(|part| part.text.chars().next());
        let Some(sign) = right.first().and_then(sign_of) else { return false };
        right.iter().all(|parts| sign_of(parts) == Some(sign))
            && tokenizer.knows(sign.encode_utf8(&mut [0; 4]))
            && !tokenizer
                .any_token(&|token| pairs(token).any(|(a, b)| self.before.has(a) && b == sign))
    }
}

fn pairs(text: &str) -> impl Iterator<Item = (char, char)> + '_ {
    let mut following = text.chars();
    following.next();
    text.chars().zip(following)
}

/// The parts when the last of `left` and the first of `right` are one.
fn join(left: &[Part], right: &[Part]) -> Option<Vec<Part>> {
    let (last, left) = left.split_last()?;
    let (first, right) = right.split_first()?;
    if last.added.is_some() || first.added.is_some() {
        return None;
    }
    let mut parts = left.to_vec();
    parts.push(Part { text: format!("{}{}", last.text, first.text), added: None });
    parts.extend(right.iter().cloned());
    Some(parts)
}
