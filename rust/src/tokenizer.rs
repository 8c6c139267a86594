//! The tokenizer handle: Hugging Face `tokenizers` with a table of the text of each token.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Once, OnceLock};

use tokenizers::{
    AddedToken, AddedVocabulary, Encoding, Model, ModelWrapper, NormalizedString, Normalizer,
    NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer,
};

use crate::decoder::{Decoder, Kind};
use crate::divide::{self, Part, Places};
use crate::load_limits::{self, TokenizerLimits};
use crate::normalize::Steps;
use crate::{enter, give_bytes, give_ids, slice, text, Bytes, Failure, Ids, View};

const KNOWN: u32 = 1;
const SPECIAL: u32 = 2;
const BYTE: u32 = 4;

const ADD_SPECIAL: u32 = 1;
const PARSE_SPECIAL: u32 = 2;
const GUARDED: u32 = 4;
const INSIDE: u32 = 8;
const CONTENT_ONLY: u32 = 16;
const GUARD: char = '\u{fdd0}';

#[derive(Default)]
struct Entry {
    flags: u32,
    fragment: Box<[u8]>,
    raw: Box<str>,
}

pub struct TokenizerHandle {
    tokenizer: Tokenizer,
    plain_vocabulary: AddedVocabulary, // the same added tokens, ignoring special ones in text
    normalizer: Steps,
    decoder: Decoder,
    entries: Vec<Entry>,
    limits: TokenizerLimits,
    places: OnceLock<Places>,
}

#[repr(C)]
pub struct DecoderInfo {
    kind: i32,
    strip_left: u32,
}

impl TokenizerHandle {
    fn new(json: &[u8], added: &[u8], limits: TokenizerLimits) -> Result<TokenizerHandle, Failure> {
        limit_regexes(limits.regex_retries_max);
        let added: Vec<serde_json::Value> =
            serde_json::from_slice(added).map_err(Failure::invalid)?;
        let mut config: serde_json::Value =
            serde_json::from_slice(json).map_err(Failure::invalid)?;
        append_added(&mut config, &added);
        load_limits::check(&config, &limits)?;
        let decoder = Decoder::from_json(&config["decoder"]);
        let normalizer = load_normalizer(&config, &limits)?;
        drop(config);
        // Some malformed files make the crate panic; report it as an error of the file.
        let mut tokenizer = catch_unwind(AssertUnwindSafe(|| Tokenizer::from_bytes(json)))
            .map_err(|_| Failure::invalid("the tokenizers library cannot use this file"))?
            .map_err(Failure::invalid)?;
        tokenizer.with_truncation(None).map_err(Failure::invalid)?;
        tokenizer.with_padding(None);
        add_tokens(&mut tokenizer, added)?;
        let mut plain_vocabulary = tokenizer.get_added_vocabulary().clone();
        plain_vocabulary.set_encode_special_tokens(true);
        let entries = entries_of(&tokenizer, &decoder, limits.vocab_max)?;
        Ok(TokenizerHandle {
            tokenizer,
            plain_vocabulary,
            normalizer,
            decoder,
            entries,
            limits,
            places: OnceLock::new(),
        })
    }

    /// Up to what the model makes tokens of.
    fn pre_tokenize(&self, text: &str, flags: u32) -> tokenizers::Result<PreTokenizedString> {
        let vocabulary = if flags & PARSE_SPECIAL != 0 {
            self.tokenizer.get_added_vocabulary()
        } else {
            &self.plain_vocabulary
        };
        let run = self.normalizer.run(text.len(), flags & INSIDE != 0, &self.limits);
        let mut pieces = vocabulary.extract_and_normalize(Some(&run), text);
        if let Some(failure) = run.failure() {
            return Err(failure.into());
        }
        if flags & GUARDED != 0 {
            pieces.normalize(|piece| {
                piece.filter(|c| c != GUARD);
                Ok(())
            })?;
        }
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        Ok(pieces)
    }

    fn encode(&self, text: &str, flags: u32) -> tokenizers::Result<Vec<u32>> {
        let mut pieces = self.pre_tokenize(text, flags)?;
        pieces.tokenize(|piece| self.tokenizer.get_model().tokenize(piece.get()))?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
        if flags & CONTENT_ONLY != 0 {
            return Ok(encoding.get_ids().to_vec());
        }
        self.frame(encoding, flags)
    }

    /// Adds what the post-processor puts around a text.
    fn frame(&self, encoding: Encoding, flags: u32) -> tokenizers::Result<Vec<u32>> {
        let encoding = self.tokenizer.post_process(encoding, None, flags & ADD_SPECIAL != 0)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Where this tokenizer's texts can be divided. Found out when a long text comes first.
    fn places(&self) -> &Places {
        self.places.get_or_init(|| Places::find(self))
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> tokenizers::Result<String> {
        self.tokenizer.decode(ids, skip_special)
    }
}

impl divide::Divisible for TokenizerHandle {
    fn parts(&self, text: &str, inside: bool) -> Option<Vec<Part>> {
        let flags = PARSE_SPECIAL | if inside { INSIDE } else { 0 };
        let pieces = self.pre_tokenize(text, flags).ok()?;
        let parts = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
        Some(
            parts
                .into_iter()
                .map(|(text, _, tokens)| Part {
                    text: text.to_string(),
                    added: tokens.as_ref().and_then(|tokens| tokens.first().map(|t| t.id)),
                })
                .collect(),
        )
    }

    fn added_tokens(&self) -> Vec<divide::Added> {
        self.tokenizer
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .values()
            .map(|token| divide::Added {
                text: token.content.clone(),
                alone: token.single_word,
                takes_space_after: token.rstrip,
            })
            .collect()
    }

    fn merges_only(&self) -> bool {
        match self.tokenizer.get_model() {
            ModelWrapper::BPE(bpe) => {
                !bpe.ignore_merges
                    && bpe.dropout.is_none_or(|p| p == 0.0)
                    && bpe.continuing_subword_prefix.is_none()
                    && bpe.end_of_word_suffix.is_none()
            }
            _ => false,
        }
    }

    fn knows(&self, token: &str) -> bool {
        self.tokenizer.get_model().token_to_id(token).is_some()
    }

    fn any_token(&self, is: &dyn Fn(&str) -> bool) -> bool {
        self.entries.iter().any(|entry| is(&entry.raw))
    }
}

/// The regexes of files run in the onig library, whose limits are the process's.
fn limit_regexes(retries_max: usize) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| unsafe {
        onig_sys::onig_set_retry_limit_in_search(retries_max as _);
    });
}

/// Also refuses a normalizer that makes far too much of a character or of an added token.
fn load_normalizer(config: &serde_json::Value, limits: &TokenizerLimits) -> Result<Steps, Failure> {
    let json = &config["normalizer"];
    let normalizer: Option<NormalizerWrapper> = catch_unwind(AssertUnwindSafe(|| {
        // From text: Precompiled borrows from it.
        serde_json::from_str(&json.to_string())
    }))
    .map_err(|_| Failure::invalid("the tokenizers library cannot use this normalizer"))?
    .map_err(Failure::invalid)?;
    let steps = Steps::new(normalizer.as_ref(), json)?;
    let normalize = |text: &str, bytes_max: usize| -> Result<(), Failure> {
        let run = steps.run_within(bytes_max);
        let mut normalized = NormalizedString::from(text);
        let done = catch_unwind(AssertUnwindSafe(|| run.normalize(&mut normalized)));
        if done.is_err() {
            return Err(Failure::invalid("the tokenizers library cannot use this normalizer"));
        }
        match run.failure() {
            None => Ok(()),
            Some(failure) => Err(Failure::invalid(format!("of {text:?} alone, {failure}"))),
        }
    };
    for c in ' '..='~' {
        normalize(c.encode_utf8(&mut [0; 4]), limits.token_bytes_max)?;
    }
    for token in config["added_tokens"].as_array().into_iter().flatten() {
        if token["normalized"].as_bool().unwrap_or(true) {
            let content = token["content"].as_str().unwrap_or("");
            normalize(content, content.len() * limits.growth_max + limits.token_bytes_max)?;
        }
    }
    Ok(steps)
}

/// The limits hold for the tokens of other files too.
fn append_added(config: &mut serde_json::Value, added: &[serde_json::Value]) {
    let Some(file) = config.as_object_mut() else { return };
    let list = file.entry("added_tokens").or_insert_with(|| serde_json::Value::Array(Vec::new()));
    if let Some(list) = list.as_array_mut() {
        list.extend(added.iter().cloned());
    }
}

/// The tokens that other files of the model folder add. The crate gives them ids and overwrites the
/// flags of tokens that it has, as transformers does.
fn add_tokens(tokenizer: &mut Tokenizer, added: Vec<serde_json::Value>) -> Result<(), Failure> {
    let mut tokens: Vec<AddedToken> = Vec::with_capacity(added.len());
    for value in added {
        let only_if_new = value["only_if_new"].as_bool().unwrap_or(false);
        let token: AddedToken = serde_json::from_value(value).map_err(Failure::invalid)?;
        let known = tokenizer.get_added_vocabulary().get_vocab().contains_key(&token.content);
        if !(only_if_new && known) {
            tokens.push(token);
        }
    }
    if tokens.is_empty() {
        return Ok(());
    }
    catch_unwind(AssertUnwindSafe(|| tokenizer.add_tokens(tokens)))
        .map_err(|_| Failure::invalid("the tokenizers library cannot add the folder's tokens"))?
        .map_err(Failure::invalid)?;
    Ok(())
}

fn entries_of(
    tokenizer: &Tokenizer,
    decoder: &Decoder,
    vocab_max: usize,
) -> Result<Vec<Entry>, Failure> {
    let added = tokenizer.get_added_vocabulary();
    let mut entries: Vec<Entry> = Vec::new();
    let mut put = |id: u32, token: &str| -> Result<(), Failure> {
        let index = id as usize;
        if index >= vocab_max {
            let message = format!("token id {id} is beyond the limit of {vocab_max} tokens");
            return Err(Failure::Limit(message));
        }
        if entries.len() <= index {
            entries.resize_with(index + 1, Entry::default);
        }
        let (fragment, is_byte) = decoder.fragment(token);
        let special = if added.is_special_token(token) { SPECIAL } else { 0 };
        let byte = if is_byte { BYTE } else { 0 };
        entries[index] = Entry {
            flags: KNOWN | special | byte,
            fragment: fragment.into_boxed_slice(),
            raw: token.into(),
        };
        Ok(())
    };
    for (token, id) in tokenizer.get_model().get_vocab() {
        put(id, &token)?;
    }
    // An added token takes precedence over a vocabulary entry with the same id, as in decode().
    for (id, token) in added.get_added_tokens_decoder() {
        put(*id, &token.content)?;
    }
    Ok(entries)
}

/// # Safety
/// Pointers are valid for their sizes; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn mrt_tokenizer_new(
    json: *const u8,
    json_size: usize,
    added: *const u8,
    added_size: usize,
    limits: TokenizerLimits,
    out: *mut *mut TokenizerHandle,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let added = slice(added, added_size);
        let handle = TokenizerHandle::new(slice(json, json_size), added, limits)?;
        out.write(Box::into_raw(Box::new(handle)));
        Ok(())
    })
}

/// # Safety
/// `tokenizer` came from mrt_tokenizer_new and is freed once.
#[no_mangle]
pub unsafe extern "C" fn mrt_tokenizer_free(tokenizer: *mut TokenizerHandle) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

/// # Safety
/// `tokenizer` is a live handle.
#[no_mangle]
pub unsafe extern "C" fn mrt_tokenizer_vocab_size(tokenizer: *const TokenizerHandle) -> u32 {
    (*tokenizer).entries.len() as u32
}

/// # Safety
/// `tokenizer` is a live handle; pointers are valid for their sizes.
#[no_mangle]
pub unsafe extern "C" fn mrt_tokenizer_encode(
    tokenizer: *const TokenizerHandle,
    data: *const u8,
    size: usize,
    flags: u32,
    text_bytes_max: usize,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        if size > text_bytes_max {
            let message = format!("text of {size} bytes is beyond the limit of {text_bytes_max}");
            return Err(Failure::Limit(message));
        }
        let ids = (*tokenizer).encode(text(data, size)?, flags).map_err(Failure::invalid)?;
        give_ids(out, ids);
        Ok(())
    })
}

/// # Safety
/// `tokenizer` is a live handle; pointers are valid for their sizes.
#[no_mangle]
pub unsafe extern "C" fn mrt_tokenizer_frame(
    tokenizer: *const TokenizerHandle,
    ids: *const u32,
    ids_size: usize,
    flags: u32,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let items = slice(ids, ids_size).iter().map(|&id| (id, String::new(), (0, 0), None, 0));
        let encoding: Encoding = items.collect();
        let framed = (*tokenizer).frame(encoding, flags).map_err(Failure::invalid)?;
        give_ids(out, framed);
        Ok(())
    })
}

/// # Safety
/// `tokenizer` is a live handle; `data` is valid for its size.
#[no_mangle]
pub unsafe extern "C" fn mrt_tokenizer_place_after(
    tokenizer: *const TokenizerHandle,
    data: *const u8,
    size: usize,
    from: usize,
) -> usize {
    let find = || (*tokenizer).places().after(slice(data, size), from);
    catch_unwind(AssertUnwindSafe(find)).unwrap_or(size)
}

/// # Safety
/// `tokenizer` is a live handle; `data` is valid for its size.
#[no_mangle]
pub unsafe extern "C" fn mrt_tokenizer_place_before(
    tokenizer: *const TokenizerHandle,
    data: *const u8,
    size: usize,
    from: usize,
) -> usize {
    let find = || (*tokenizer).places().before(slice(data, size), from);
    catch_unwind(AssertUnwindSafe(find)).unwrap_or(0)
}

/// # Safety
/// `tokenizer` is a live handle; pointers are valid for their sizes.
#[no_mangle]
pub unsafe extern "C" fn mrt_tokenizer_decode(
    tokenizer: *const TokenizerHandle,
    ids: *const u32,
    ids_size: usize,
    skip_special: i32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let text = (*tokenizer)
            .decode(slice(ids, ids_size), skip_special != 0)
            .map_err(Failure::invalid)?;
        give_bytes(out, text.into_bytes());
        Ok(())
    })
}

/// # Safety
/// `tokenizer` is a live handle; pointers are valid for their sizes.
#[no_mangle]
pub unsafe extern "C" fn mrt_tokenizer_token_to_id(
    tokenizer: *const TokenizerHandle,
    token: *const u8,
    size: usize,
    id: *mut u32,
) -> i32 {
    let found = text(token, size).ok().and_then(|token| (*tokenizer).tokenizer.token_to_id(token));
    if let Some(found) = found {
        id.write(found);
    }
    i32::from(found.is_some())
}

/// # Safety
/// `tokenizer` is a live handle.
#[no_mangle]
pub unsafe extern "C" fn mrt_tokenizer_decoder_info(
    tokenizer: *const TokenizerHandle,
) -> DecoderInfo {
    let decoder = &(*tokenizer).decoder;
    let kind: Kind = decoder.kind;
    DecoderInfo { kind: kind as i32, strip_left: decoder.strip_left }
}

/// # Safety
/// `tokenizer` is a live handle; `fragment` and `raw` are writable.
#[no_mangle]
pub unsafe extern "C" fn mrt_tokenizer_token(
    tokenizer: *const TokenizerHandle,
    id: u32,
    fragment: *mut View,
    raw: *mut View,
) -> u32 {
    let tokenizer = &*tokenizer;
    match tokenizer.entries.get(id as usize) {
        Some(entry) => {
            fragment.write(View::of(&entry.fragment));
            raw.write(View::of(entry.raw.as_bytes()));
            entry.flags
        }
        None => {
            fragment.write(View::of(&[]));
            raw.write(View::of(&[]));
            0
        }
    }
}
