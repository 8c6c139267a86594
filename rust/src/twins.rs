//! Characters that came from a request and may be part of a special token are replaced by twins
//! while a template runs (src/text/special_guard.h): noncharacters that stand for one character
//! each. Text keeps them on its way into the output, so that the caller knows who wrote a token.
//! Everything that looks at text looks at what the twins stand for.

use std::borrow::Cow;
use std::cell::RefCell;

use minijinja::Error;

use crate::budget::charge;

/// Twins are from U+FDD0 to U+FDEF; the first two bytes of all are these.
const LEAD: [u8; 2] = [0xEF, 0xB7];

thread_local! {
    // Twin and original, of this render; empty: none.
    static TABLE: RefCell<Vec<(char, char)>> = const { RefCell::new(Vec::new()) };
}

/// `pairs` is a text of twins, each followed by the character it stands for.
pub fn begin(pairs: &str) {
    let characters: Vec<char> = pairs.chars().collect();
    let table = characters.chunks_exact(2).map(|pair| (pair[0], pair[1]));
    TABLE.set(table.collect());
}

/// What `c` stands for.
pub fn original(c: char) -> char {
    if !('\u{fdd0}'..='\u{fdef}').contains(&c) {
        return c;
    }
    TABLE.with_borrow(|table| {
        table.iter().find(|(twin, _)| *twin == c).map_or(c, |(_, original)| *original)
    })
}

pub fn has_twins(text: &str) -> bool {
    if TABLE.with_borrow(Vec::is_empty) {
        return false;
    }
    text.as_bytes().windows(2).any(|pair| pair == LEAD) && text.chars().any(|c| original(c) != c)
}

/// The text as it would be without twins.
pub fn seen(text: &str) -> Cow<'_, str> {
    if has_twins(text) {
        Cow::Owned(text.chars().map(original).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// A text as it would be without twins, to be searched, and the way back to the text itself.
pub struct Searched<'a> {
    text: &'a str,
    seen: Cow<'a, str>,
    places: Vec<u32>, // in `text`, of each byte of `seen` and its end; empty: the same
}

impl<'a> Searched<'a> {
    pub fn new(text: &'a str) -> Result<Searched<'a>, Error> {
        let seen = seen(text);
        let mut places = Vec::new();
        if let Cow::Owned(shown) = &seen {
            charge(shown.len().saturating_mul(4))?;
            places.reserve(shown.len() + 1);
            for (place, c) in text.char_indices() {
                places.extend(std::iter::repeat_n(place as u32, original(c).len_utf8()));
            }
            places.push(text.len() as u32);
        }
        Ok(Searched { text, seen, places })
    }

    pub fn seen(&self) -> &str {
        &self.seen
    }

    /// The part of the text that is seen as `seen()[begin..end]`.
    pub fn part(&self, begin: usize, end: usize) -> &'a str {
        if self.places.is_empty() {
            &self.text[begin..end]
        } else {
            &self.text[self.places[begin] as usize..self.places[end] as usize]
        }
    }
}
