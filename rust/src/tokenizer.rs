//! The tokenizer handle: Hugging Face `tokenizers` with a table of the text of each token.

use std::panic::{catch_unwind, AssertUnwindSafe};

use tokenizers::{AddedVocabulary, Model, NormalizerWrapper, OffsetType, PreTokenizer, Tokenizer};

use crate::decoder::{Decoder, Kind};
use crate::{enter, give_bytes, give_ids, slice, text, Bytes, Failure, Ids, View};

const KNOWN: u32 = 1;
const SPECIAL: u32 = 2;
const BYTE: u32 = 4;

const ADD_SPECIAL: u32 = 1;
const PARSE_SPECIAL: u32 = 2;
const GUARDED: u32 = 4;
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
    decoder: Decoder,
    entries: Vec<Entry>,
}

#[repr(C)]
pub struct DecoderInfo {
    kind: i32,
    strip_left: u32,
}

impl TokenizerHandle {
    fn new(json: &[u8], vocab_max: usize) -> Result<TokenizerHandle, Failure> {
        let config: serde_json::Value = serde_json::from_slice(json).map_err(Failure::invalid)?;
        let decoder = Decoder::from_json(&config["decoder"]);
        drop(config);
        // Some malformed files make the crate panic; report it as an error of the file.
        let mut tokenizer = catch_unwind(AssertUnwindSafe(|| Tokenizer::from_bytes(json)))
            .map_err(|_| Failure::invalid("the tokenizers library cannot use this file"))?
            .map_err(Failure::invalid)?;
        tokenizer.with_truncation(None).map_err(Failure::invalid)?;
        tokenizer.with_padding(None);
        let mut plain_vocabulary = tokenizer.get_added_vocabulary().clone();
        plain_vocabulary.set_encode_special_tokens(true);
        let entries = entries_of(&tokenizer, &decoder, vocab_max)?;
        Ok(TokenizerHandle { tokenizer, plain_vocabulary, decoder, entries })
    }

    fn encode(&self, text: &str, flags: u32) -> tokenizers::Result<Vec<u32>> {
        let normalizer: Option<&NormalizerWrapper> = self.tokenizer.get_normalizer();
        let vocabulary = if flags & PARSE_SPECIAL != 0 {
            self.tokenizer.get_added_vocabulary()
        } else {
            &self.plain_vocabulary
        };
        let mut pieces = vocabulary.extract_and_normalize(normalizer, text);
        if flags & GUARDED != 0 {
            pieces.normalize(|piece| {
                piece.filter(|c| c != GUARD);
                Ok(())
            })?;
        }
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.tokenizer.get_model().tokenize(piece.get()))?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
        let encoding = self.tokenizer.post_process(encoding, None, flags & ADD_SPECIAL != 0)?;
        Ok(encoding.get_ids().to_vec())
    }

    fn decode(&self, ids: &[u32], skip_special: bool) -> tokenizers::Result<String> {
        self.tokenizer.decode(ids, skip_special)
    }
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
    vocab_max: usize,
    out: *mut *mut TokenizerHandle,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let handle = TokenizerHandle::new(slice(json, json_size), vocab_max)?;
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
