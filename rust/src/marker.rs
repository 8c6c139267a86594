//! The markers of reasoning, found in the bytes of an answer.

use anyhow::anyhow;
use llguidance::toktrie::TokenId;
use serde_json::Value;

/// A text to find, and how far a search for it goes back after a byte that does not fit.
pub struct Marker {
    pub text: Vec<u8>,
    pub id: Option<TokenId>, // of the special token with this text
    pub borders: Vec<usize>, // of its first k bytes: the longest proper suffix that is also a prefix
}

impl Marker {
    pub fn of(object: &Value, key: &str) -> anyhow::Result<Marker> {
        let text = object[key].as_str().filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| anyhow!("reasoning has no marker \"{key}\""))?;
        let text = text.as_bytes().to_vec();
        let id = object[format!("{key}_id")].as_u64().map(TokenId::try_from).transpose()?;
        let mut marker = Marker { id, borders: vec![0; text.len() + 1], text };
        for size in 1..marker.text.len() {
            marker.borders[size + 1] = marker.next(marker.borders[size], marker.text[size]);
        }
        Ok(marker)
    }

    /// How many of its bytes the text ends with, if it ended with `matched` of them before `byte`.
    pub fn next(&self, mut matched: usize, byte: u8) -> usize {
        while matched > 0 && self.text.get(matched) != Some(&byte) {
            matched = self.borders[matched];
        }
        matched + usize::from(self.text[matched] == byte)
    }

    /// Where in `text` it ends first, or how many of its bytes `text` ends with.
    pub fn find(&self, mut matched: usize, text: &[u8]) -> Result<usize, usize> {
        for (i, &byte) in text.iter().enumerate() {
            matched = self.next(matched, byte);
            if matched == self.text.len() {
                return Ok(i + 1);
            }
        }
        Err(matched)
    }

    pub fn rest(&self, matched: usize) -> &[u8] {
        &self.text[matched..]
    }
}
