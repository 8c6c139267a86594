//! The limits of a tokenizer.json, which is untrusted: what it may hold and how far its parts may
//! multiply a text. Checked on the parsed JSON, before the crate builds anything from it.

use serde_json::Value;

use crate::Failure;

/// See MrtTokenizerLimits.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TokenizerLimits {
    pub vocab_max: usize,
    pub token_bytes_max: usize,
    pub added_bytes_max: usize,
    pub steps_max: usize,
    pub step_depth_max: usize,
    pub step_text_bytes_max: usize,
    pub decoder_growth_max: usize,
    pub framing_tokens_max: usize,
    pub word_chars_max: usize,
    pub growth_max: usize,
    pub growth_bytes_free: usize,
    pub regex_retries_max: usize,
}

/// Of all tokens that begin a text together. Vocabularies of SentencePiece have a few hundred.
const CHAIN_BYTES_MAX: usize = 16 << 10;

/// Refuses a file with parts beyond the limits; names the part, its size and the limit.
pub fn check(file: &Value, limits: &TokenizerLimits) -> Result<(), Failure> {
    check_added_tokens(&file["added_tokens"], limits)?;
    check_model(&file["model"], limits)?;
    for (field, children) in [
        ("normalizer", "normalizers"),
        ("pre_tokenizer", "pretokenizers"),
        ("post_processor", "processors"),
        ("decoder", "decoders"),
    ] {
        let steps = Steps { field, children, limits };
        let mut count = 0;
        steps.check(&file[field], 1, &mut count)?;
    }
    check_decoder_growth(&file["decoder"], limits)?;
    check_framing(&file["post_processor"], limits)
}

fn beyond(what: String, has: usize, unit: &str, max: usize) -> Failure {
    Failure::invalid(format!("{what} has {has} {unit}; the limit is {max}"))
}

fn check_token(list: &str, token: &str, limits: &TokenizerLimits) -> Result<(), Failure> {
    if token.len() <= limits.token_bytes_max {
        return Ok(());
    }
    let begin: String = token.chars().take(16).collect();
    let what = format!("a token of {list}, which begins with {begin:?},");
    Err(beyond(what, token.len(), "bytes", limits.token_bytes_max))
}

fn check_added_tokens(tokens: &Value, limits: &TokenizerLimits) -> Result<(), Failure> {
    let mut bytes = 0;
    for token in tokens.as_array().into_iter().flatten() {
        let content = token["content"].as_str().unwrap_or("");
        check_token("added_tokens", content, limits)?;
        bytes += content.len();
    }
    if bytes > limits.added_bytes_max {
        let what = "added_tokens, all their content together,".to_string();
        return Err(beyond(what, bytes, "bytes", limits.added_bytes_max));
    }
    Ok(())
}

fn check_model(model: &Value, limits: &TokenizerLimits) -> Result<(), Failure> {
    for token in model["vocab"].as_object().into_iter().flatten() {
        check_token("model.vocab", token.0, limits)?;
    }
    for entry in model["vocab"].as_array().into_iter().flatten() {
        check_token("model.vocab", entry[0].as_str().unwrap_or(""), limits)?;
    }
    if let Some(entries) = model["vocab"].as_array() {
        check_chains(entries)?;
    }
    for name in ["continuing_subword_prefix", "end_of_word_suffix"] {
        check_text(name, &model[name], limits)?;
    }
    // WordPiece tries every end for every start of a word.
    let chars = model["max_input_chars_per_word"].as_u64().unwrap_or(0) as usize;
    if chars > limits.word_chars_max {
        let what = "max_input_chars_per_word".to_string();
        return Err(Failure::invalid(format!(
            "{what} is {chars}; the limit is {}",
            limits.word_chars_max
        )));
    }
    Ok(())
}

/// Unigram looks at every token that begins at each place of a text: tokens that begin with each
/// other cost their sum there.
fn check_chains(entries: &[Value]) -> Result<(), Failure> {
    let mut tokens: Vec<&str> = entries.iter().filter_map(|entry| entry[0].as_str()).collect();
    tokens.sort_unstable();
    let mut chain: Vec<&str> = Vec::new();
    let mut bytes = 0;
    for token in tokens {
        while let Some(last) = chain.last().filter(|last| !token.starts_with(**last)) {
            bytes -= last.len();
            chain.pop();
        }
        chain.push(token);
        bytes += token.len();
        if bytes > CHAIN_BYTES_MAX {
            let what = "a chain of tokens of model.vocab that begin with each other".to_string();
            return Err(beyond(what, bytes, "bytes", CHAIN_BYTES_MAX));
        }
    }
    Ok(())
}

fn check_text(what: &str, text: &Value, limits: &TokenizerLimits) -> Result<(), Failure> {
    let bytes = text.as_str().map_or(0, str::len);
    if bytes > limits.step_text_bytes_max {
        return Err(beyond(what.to_string(), bytes, "bytes", limits.step_text_bytes_max));
    }
    Ok(())
}

/// The steps of one field, which nest in Sequences.
struct Steps<'a> {
    field: &'a str,
    children: &'a str,
    limits: &'a TokenizerLimits,
}

impl Steps<'_> {
    fn check(&self, step: &Value, depth: usize, count: &mut usize) -> Result<(), Failure> {
        let limits = self.limits;
        *count += 1;
        if depth > limits.step_depth_max {
            let what = format!("the Sequence of {}", self.field);
            return Err(beyond(what, depth, "levels", limits.step_depth_max));
        }
        if *count > limits.steps_max {
            return Err(beyond(self.field.to_string(), *count, "steps", limits.steps_max));
        }
        let name = type_of(step);
        for text in ["content", "prepend", "replacement", "prefix", "suffix", "pad_token"] {
            check_text(&format!("{text} of {name} in {}", self.field), &step[text], limits)?;
        }
        if name == "Replace" && step["pattern"]["String"] == "" {
            return Err(Failure::invalid(format!(
                "a Replace of {} has an empty pattern",
                self.field
            )));
        }
        for kind in ["String", "Regex"] {
            let what = format!("pattern of {name} in {}", self.field);
            check_text(&what, &step["pattern"][kind], limits)?;
        }
        if let Some(charsmap) = step["precompiled_charsmap"].as_str() {
            let longest = longest_replacement(charsmap)?;
            if longest > limits.step_text_bytes_max {
                let what = "a replacement of Precompiled".to_string();
                return Err(beyond(what, longest, "bytes", limits.step_text_bytes_max));
            }
        }
        if name == "FixedLength" && step["length"].as_u64() == Some(0) {
            return Err(Failure::invalid("length of FixedLength must be at least 1"));
        }
        for child in step[self.children].as_array().into_iter().flatten() {
            self.check(child, depth + 1, count)?;
        }
        Ok(())
    }
}

/// Of a map of SentencePiece: the size of a table, the table, and texts that end with a 0.
pub fn longest_replacement(charsmap: &str) -> Result<usize, Failure> {
    let map = base64::decode(charsmap).map_err(Failure::invalid)?;
    let table = map.get(..4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
    let texts = map.get(4usize.saturating_add(table)..).unwrap_or(&[]);
    Ok(texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0))
}

/// A token's text goes through every step of the decoder.
fn check_decoder_growth(decoder: &Value, limits: &TokenizerLimits) -> Result<(), Failure> {
    let growth = growth_of(decoder);
    if growth > limits.decoder_growth_max {
        return Err(Failure::invalid(format!(
            "the Replace steps of decoder can make {growth} bytes of one; the limit is {}",
            limits.decoder_growth_max
        )));
    }
    Ok(())
}

fn growth_of(step: &Value) -> usize {
    if let Some(steps) = step["decoders"].as_array() {
        return steps.iter().map(growth_of).fold(1, usize::saturating_mul);
    }
    let content = step["content"].as_str().map_or(0, str::len);
    match (type_of(step), step["pattern"]["String"].as_str()) {
        ("Replace", Some(pattern)) => content.div_ceil(pattern.len().max(1)).max(1),
        ("Replace", None) => content + 1, // a regex may match nothing, everywhere
        _ => 1,
    }
}

/// What the post-processor puts around a text: the text once, and a few tokens.
fn check_framing(step: &Value, limits: &TokenizerLimits) -> Result<(), Failure> {
    for child in step["processors"].as_array().into_iter().flatten() {
        check_framing(child, limits)?;
    }
    let (mut texts, mut tokens) = (0, 0);
    for piece in step["single"].as_array().into_iter().flatten() {
        texts += usize::from(piece["Sequence"].is_object());
        if piece["Sequence"]["id"].as_str().is_some_and(|id| id != "A") {
            return Err(Failure::invalid(
                "the single template of post_processor has a second text; a text alone is \"A\"",
            ));
        }
        if let Some(id) = piece["SpecialToken"]["id"].as_str() {
            tokens += step["special_tokens"][id]["ids"].as_array().map_or(0, Vec::len);
        }
    }
    if texts > 1 {
        return Err(Failure::invalid(format!(
            "the post_processor repeats the text {texts} times; it may have it once"
        )));
    }
    if tokens > limits.framing_tokens_max {
        let what = "the single template of post_processor".to_string();
        return Err(beyond(what, tokens, "tokens", limits.framing_tokens_max));
    }
    Ok(())
}

fn type_of(step: &Value) -> &str {
    step["type"].as_str().unwrap_or("")
}
