//! What a streaming decoder needs to know about tokenizer.json's decoder: which of a few exact
//! shapes it has, and the fragment that each token adds after the start of a text.

use std::collections::HashMap;

use serde_json::Value;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Kind {
    ByteLevel = 0,
    ByteFallback = 1,
    FirstDiffers = 2,
    Whole = 3,
}

pub struct Decoder {
    pub kind: Kind,
    pub strip_left: u32,
    steps: Vec<(String, String)>, // literal replacements within one token, in order
    separator: &'static str,      // in front of every token but the first
    bytes_of_chars: HashMap<char, u8>,
}

impl Decoder {
    pub fn from_json(decoder: &Value) -> Decoder {
        let mut plan = Decoder {
            kind: Kind::Whole,
            strip_left: 0,
            steps: Vec::new(),
            separator: "",
            bytes_of_chars: HashMap::new(),
        };
        match type_of(decoder) {
            // Without a decoder the tokens are joined by spaces.
            "" => {
                plan.kind = Kind::FirstDiffers;
                plan.separator = " ";
            }
            "ByteLevel" => plan.set_byte_level(),
            "Metaspace" => plan.set_metaspace(decoder),
            "ByteFallback" => plan.kind = Kind::ByteFallback,
            "Sequence" => plan.set_sequence(decoder),
            _ => {}
        }
        plan
    }

    /// The fragment of `token`, and whether it is a byte token.
    pub fn fragment(&self, token: &str) -> (Vec<u8>, bool) {
        match self.kind {
            Kind::ByteLevel => (self.byte_level(token), false),
            Kind::Whole => (token.as_bytes().to_vec(), false),
            Kind::ByteFallback | Kind::FirstDiffers => {
                let mut text = token.to_string();
                for (from, to) in &self.steps {
                    text = text.replace(from, to);
                }
                if self.kind == Kind::ByteFallback {
                    if let Some(byte) = byte_token(&text) {
                        return (vec![byte], true);
                    }
                }
                (format!("{}{text}", self.separator).into_bytes(), false)
            }
        }
    }

    fn set_byte_level(&mut self) {
        self.kind = Kind::ByteLevel;
        self.bytes_of_chars = byte_level_alphabet();
    }

    fn set_metaspace(&mut self, decoder: &Value) {
        if let Some(replacement) = decoder["replacement"].as_str() {
            self.kind = Kind::FirstDiffers;
            self.steps.push((replacement.to_string(), " ".to_string()));
        }
    }

    /// Replace* ByteFallback? Fuse? Strip(' ', left only)? in this order. Strip is allowed only
    /// after Fuse, because before it it would strip every token.
    fn set_sequence(&mut self, decoder: &Value) {
        let empty = Vec::new();
        let parts = decoder["decoders"].as_array().unwrap_or(&empty);
        if let [one] = parts.as_slice() {
            if type_of(one) == "ByteLevel" {
                return self.set_byte_level();
            }
        }
        let mut steps = Vec::new();
        let (mut stage, mut fallback, mut strip_left) = (0, false, 0);
        for part in parts {
            let next = match type_of(part) {
                "Replace" => 1,
                "ByteFallback" => 2,
                "Fuse" => 3,
                "Strip" => 4,
                _ => return,
            };
            if next < stage || (next == stage && next > 1) || (next == 4 && stage != 3) {
                return;
            }
            stage = next;
            match next {
                1 => match (part["pattern"]["String"].as_str(), part["content"].as_str()) {
                    (Some(from), Some(to)) if !from.is_empty() => {
                        steps.push((from.to_string(), to.to_string()))
                    }
                    _ => return,
                },
                2 => fallback = true,
                4 => {
                    if part["content"].as_str() != Some(" ") || part["stop"].as_u64() != Some(0) {
                        return;
                    }
                    strip_left = part["start"].as_u64().unwrap_or(0) as u32;
                }
                _ => {}
            }
        }
        if fallback {
            self.kind = Kind::ByteFallback;
            self.steps = steps;
            self.strip_left = strip_left;
        }
    }

    fn byte_level(&self, token: &str) -> Vec<u8> {
        let mapped: Option<Vec<u8>> =
            token.chars().map(|c| self.bytes_of_chars.get(&c).copied()).collect();
        // A token with a character outside the alphabet (an added token) decodes to itself.
        mapped.unwrap_or_else(|| token.as_bytes().to_vec())
    }
}

fn type_of(part: &Value) -> &str {
    part["type"].as_str().unwrap_or("")
}

fn byte_token(token: &str) -> Option<u8> {
    if token.len() == 6 && token.starts_with("<0x") && token.ends_with('>') {
        u8::from_str_radix(token.get(3..5)?, 16).ok()
    } else {
        None
    }
}

/// The inverse of GPT-2's map of bytes to printable characters.
fn byte_level_alphabet() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    (0..=255u8)
        .map(|byte| {
            let code = if printable(byte) {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(code).expect("below the surrogates"), byte)
        })
        .collect()
}
