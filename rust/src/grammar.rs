//! Constrained output: `llguidance` over a table of the tokens' bytes. A vocabulary compiles
//! grammars; a matcher follows one sequence.

use std::sync::Arc;

use anyhow::{anyhow, bail, ensure};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId,
};
use llguidance::{earley::SlicedBiasComputer, regex_to_lark, Matcher, ParserFactory};
use serde_json::{json, Value};

use crate::{enter, slice, text, Bytes, Failure};

const MAGIC: &[u8] = b"mrtable1";
const SPECIAL: u32 = 1;

#[repr(C)]
pub struct GrammarLimits {
    compile_fuel: u64,
    step_fuel: u64,
    step_items_max: usize,
    row_items_max: usize,
    lexer_states_max: usize,
    symbols_max: usize,
}

pub struct Vocabulary {
    factory: ParserFactory,
}

pub struct Grammar {
    start: Matcher,
}

pub struct GrammarMatcher {
    matcher: Matcher,
}

/// Reads the little-endian table that `mrt_vocabulary_new` takes.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> anyhow::Result<&'a [u8]> {
        ensure!(size <= self.rest.len(), "the token table is cut off");
        let (taken, rest) = self.rest.split_at(size);
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self) -> anyhow::Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into()?))
    }
}

fn trie_of(table: &[u8]) -> anyhow::Result<TokTrie> {
    let mut reader = Reader { rest: table };
    ensure!(reader.take(MAGIC.len())? == MAGIC, "this is no token table");
    let vocab_size = reader.number()?;
    let ends = reader.number()?;
    ensure!(ends > 0, "the vocabulary has no end-of-sequence token");
    let ends = (0..ends).map(|_| reader.number()).collect::<anyhow::Result<Vec<TokenId>>>()?;
    ensure!(ends.iter().all(|&id| id < vocab_size), "an end-of-sequence token is unknown");
    // Each token takes four bytes at least, so the table's size bounds what is allocated.
    ensure!(vocab_size as usize <= reader.rest.len() / 4, "the token table is cut off");
    let mut words = Vec::with_capacity(vocab_size as usize);
    for _ in 0..vocab_size {
        let header = reader.number()?;
        let bytes = reader.take((header >> 1) as usize)?;
        let mut word = Vec::with_capacity(bytes.len() + 1);
        if header & SPECIAL != 0 {
            word.push(TokTrie::SPECIAL_TOKEN_MARKER);
        }
        word.extend_from_slice(bytes);
        // A byte of its own would be taken for the mark of special tokens; it is never text.
        if header & SPECIAL == 0 && word.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
            word.clear();
        }
        words.push(word);
    }
    ensure!(reader.rest.is_empty(), "the token table has bytes after its end");
    let trie = TokTrie::from(&TokRxInfo::new(vocab_size, ends[0]), &words);
    Ok(trie.with_eos_tokens(&ends))
}

impl Vocabulary {
    fn new(table: &[u8], limits: &GrammarLimits) -> anyhow::Result<Vocabulary> {
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie_of(table)?));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)?;
        *factory.limits_mut() = ParserLimits {
            max_items_in_row: limits.row_items_max,
            initial_lexer_fuel: limits.compile_fuel,
            step_lexer_fuel: limits.step_fuel,
            step_max_items: limits.step_items_max,
            max_lexer_states: limits.lexer_states_max,
            max_grammar_size: limits.symbols_max,
            precompute_large_lexemes: false,
            verbose_errors: false,
        };
        factory.quiet();
        Ok(Vocabulary { factory })
    }

    fn compile(&self, grammar: &str) -> anyhow::Result<Grammar> {
        let mut start = Matcher::new(self.factory.create_parser(top_level(grammar)?));
        if let Some(error) = start.get_error() {
            bail!(error);
        }
        ensure!(!start.is_stopped(), "no text matches it");
        // The first mask shows what only matching finds: limits, and grammars that match nothing.
        // It also warms the caches that all sequences of the grammar share.
        let mask = start.compute_mask_or_eos()?;
        ensure!(!mask.is_zero(), "no text of this vocabulary matches it");
        Ok(Grammar { start })
    }
}

/// The errors of the crate show the place in the grammar and may carry a backtrace.
fn first_line(error: anyhow::Error) -> String {
    let message = error.to_string();
    let mut lines = message.lines().map(str::trim);
    let mut first = lines.next().unwrap_or("").to_string();
    // A regular expression's error shows it first.
    if let Some(cause) = lines.find_map(|line| line.strip_prefix("error: ")) {
        first = format!("{} {cause}", first.trim_end_matches("regex parse error:").trim_end());
    }
    if let Some(option) = first.find(". Enable ") {
        first.truncate(option); // an option of the crate
    }
    first
}

fn top_level(grammar: &str) -> anyhow::Result<TopLevelGrammar> {
    let (kind, text) = grammar.split_once(':').ok_or_else(|| anyhow!("it has no kind"))?;
    Ok(match kind {
        "json_schema" => TopLevelGrammar::from_json_schema(schema_of(text)?),
        "regex" => TopLevelGrammar::from_regex(without_anchors(text)),
        "choice" => TopLevelGrammar::from_lark(lark_of_choice(&serde_json::from_str(text)?)?),
        "lark" => TopLevelGrammar::from_lark(text.to_string()),
        "tags" => TopLevelGrammar::from_lark(lark_of_tags(&serde_json::from_str(text)?)?),
        "reasoned" => TopLevelGrammar::from_lark(lark_of_reasoned(&serde_json::from_str(text)?)?),
        _ => bail!("{kind} is no kind of grammar"),
    })
}

fn schema_of(text: &str) -> anyhow::Result<Value> {
    let mut schema = serde_json::from_str(text)?;
    without_annotations(&mut schema);
    Ok(schema)
}

/// The formats that the crate constrains.
const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Removes what has no effect on which values are valid, and the crate refuses.
fn without_annotations(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    // By the specification an unknown format is an annotation.
    if object.get("format").and_then(Value::as_str).is_some_and(|name| !FORMATS.contains(&name)) {
        object.remove("format");
    }
    if object.get("uniqueItems") == Some(&Value::Bool(false)) {
        object.remove("uniqueItems");
    }
    if !object.contains_key("then") && !object.contains_key("else") {
        object.remove("if");
    }
    if !object.contains_key("contains") {
        object.remove("minContains");
        object.remove("maxContains");
    }
    for (key, value) in object.iter_mut() {
        match key.as_str() {
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
                value
                    .as_object_mut()
                    .into_iter()
                    .flatten()
                    .for_each(|(_, s)| without_annotations(s));
            }
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
                value.as_array_mut().into_iter().flatten().for_each(without_annotations);
            }
            "items"
            | "additionalProperties"
            | "not"
            | "if"
            | "then"
            | "else"
            | "contains"
            | "propertyNames"
            | "unevaluatedItems"
            | "unevaluatedProperties" => {
                without_annotations(value);
            }
            _ => (),
        }
    }
}

/// The whole output matches anyway.
fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        // An odd number of backslashes means that the dollar is text.
        Some(rest) if rest.bytes().rev().take_while(|&b| b == b'\\').count() % 2 == 0 => rest,
        _ => regex,
    }
}

fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

fn lark_of_choice(choices: &Value) -> anyhow::Result<String> {
    let texts = choices.as_array().ok_or_else(|| anyhow!("choices are a list of strings"))?;
    let mut alternatives = Vec::with_capacity(texts.len());
    for choice in texts {
        let choice = choice.as_str().ok_or_else(|| anyhow!("choices are strings"))?;
        ensure!(!choice.is_empty(), "a choice is empty");
        alternatives.push(escaped(choice));
    }
    ensure!(!alternatives.is_empty(), "there are no choices");
    // One expression: the parser has a limit on alternatives of its own.
    Ok(format!("start: /{}/\n", regex_to_lark(&alternatives.join("|"), "")))
}

fn string_of<'a>(object: &'a Value, key: &str) -> anyhow::Result<&'a str> {
    object[key].as_str().ok_or_else(|| anyhow!("a structure has no string \"{key}\""))
}

/// Free text; where one of the triggers comes, one of the structures that begin with it follows.
fn lark_of_tags(tags: &Value) -> anyhow::Result<String> {
    let list = |key: &str| {
        let items = tags[key].as_array().filter(|items| !items.is_empty());
        items.ok_or_else(|| anyhow!("structural tags need a list \"{key}\""))
    };
    let structures = list("structures")?;
    let mut triggers = Vec::new();
    for trigger in list("triggers")? {
        let trigger = trigger.as_str().filter(|trigger| !trigger.is_empty());
        triggers.push(trigger.ok_or_else(|| anyhow!("triggers are strings that are not empty"))?);
    }
    let mut rules = String::new();
    let mut parts = Vec::new();
    for (i, structure) in structures.iter().enumerate() {
        let begin = string_of(structure, "begin")?;
        let Some(used) = triggers.iter().position(|trigger| begin.starts_with(trigger)) else {
            bail!("no trigger is the beginning of {begin:?}");
        };
        let rest = &begin[triggers[used].len()..];
        let rest = if rest.is_empty() { String::new() } else { literal(rest) };
        let end = literal(string_of(structure, "end")?);
        let mut schema = structure.get("schema").cloned().unwrap_or(json!({}));
        without_annotations(&mut schema);
        rules += &format!("tag_{i}: free_{used} {rest} body_{i} {end}\nbody_{i}: %json {schema}\n");
        parts.push(format!("tag_{i}"));
    }
    for (k, trigger) in triggers.iter().enumerate() {
        rules += &format!("free_{k}[lazy]: /(.|\\n)*{}/\n", regex_to_lark(&escaped(trigger), ""));
    }
    Ok(format!("start: ({})* TAIL\nTAIL: /(.|\\n)*/\n{rules}", parts.join(" | ")))
}

/// Reasoning, of a limited number of tokens if there is a budget, and then what the inner grammar
/// says, or anything.
fn lark_of_reasoned(reasoned: &Value) -> anyhow::Result<String> {
    // A marker that is a special token cannot be written as text.
    let marker = |key: &str| match reasoned[format!("{key}_id")].as_u64() {
        Some(id) => Ok((format!("<[{id}]>"), true)),
        None => string_of(reasoned, key).map(|text| (literal(text), false)),
    };
    let (begin, _) = marker("begin")?;
    let (end, end_is_token) = marker("end")?;
    let mut attributes = Vec::new();
    if !end_is_token {
        attributes.push(format!("stop={end}"));
    }
    if let Some(budget) = reasoned["budget"].as_u64() {
        attributes.push(format!("max_tokens={budget}"));
    }
    let attributes = match attributes.is_empty() {
        true => String::new(),
        false => format!("[{}]", attributes.join(", ")),
    };
    let start = match reasoned["begun"].as_bool() {
        Some(true) => "start: reasoning body".to_string(),
        _ => format!("start: ({begin} reasoning)? body"),
    };
    Ok(format!(
        "{start}\nreasoning: thoughts {end} GAP?\nthoughts{attributes}: /(.|\\n)*/\n\
         GAP: /[ \\n]{{1,4}}/\n{}\n",
        body_of(reasoned["grammar"].as_str().unwrap_or(""))?
    ))
}

/// The rule `body` and those that it needs.
fn body_of(grammar: &str) -> anyhow::Result<String> {
    if grammar.is_empty() {
        return Ok("body: /(.|\\n)*/".to_string());
    }
    let (kind, text) = grammar.split_once(':').ok_or_else(|| anyhow!("it has no kind"))?;
    let lark = match kind {
        "json_schema" => {
            return Ok(format!("body: %json {}", schema_of(text)?));
        }
        "regex" => format!("start: /{}/\n", regex_to_lark(without_anchors(text), "")),
        "choice" => lark_of_choice(&serde_json::from_str(text)?)?,
        "lark" => text.to_string(),
        "tags" => lark_of_tags(&serde_json::from_str(text)?)?,
        _ => bail!("{kind} is no kind of grammar"),
    };
    let mut found = false;
    let lines = lark.lines().map(|line| {
        let rest = line
            .trim_start()
            .strip_prefix("start")
            .filter(|rest| matches!(rest.trim_start().chars().next(), Some(':') | Some('[')));
        found |= rest.is_some();
        rest.map_or(line.to_string(), |rest| format!("body{rest}"))
    });
    let lark = lines.collect::<Vec<_>>().join("\n");
    ensure!(found, "it has no rule \"start\"");
    Ok(lark)
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn invalid(error: anyhow::Error) -> Failure {
    Failure::Invalid(first_line(error))
}

/// # Safety
/// Pointers are valid for their sizes; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn mrt_vocabulary_new(
    table: *const u8,
    table_size: usize,
    limits: GrammarLimits,
    out: *mut *mut Vocabulary,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let vocabulary = Vocabulary::new(slice(table, table_size), &limits).map_err(invalid)?;
        out.write(Box::into_raw(Box::new(vocabulary)));
        Ok(())
    })
}

/// # Safety
/// `vocabulary` came from mrt_vocabulary_new and is freed once.
#[no_mangle]
pub unsafe extern "C" fn mrt_vocabulary_free(vocabulary: *mut Vocabulary) {
    if !vocabulary.is_null() {
        drop(Box::from_raw(vocabulary));
    }
}

/// # Safety
/// `vocabulary` is a live handle; pointers are valid for their sizes.
#[no_mangle]
pub unsafe extern "C" fn mrt_grammar_new(
    vocabulary: *const Vocabulary,
    grammar: *const u8,
    grammar_size: usize,
    out: *mut *mut Grammar,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let compiled = (*vocabulary).compile(text(grammar, grammar_size)?).map_err(invalid)?;
        out.write(Box::into_raw(Box::new(compiled)));
        Ok(())
    })
}

/// # Safety
/// `grammar` came from mrt_grammar_new and is freed once.
#[no_mangle]
pub unsafe extern "C" fn mrt_grammar_free(grammar: *mut Grammar) {
    if !grammar.is_null() {
        drop(Box::from_raw(grammar));
    }
}

/// # Safety
/// `grammar` is a live handle; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn mrt_matcher_new(
    grammar: *const Grammar,
    out: *mut *mut GrammarMatcher,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let matcher = (*grammar).start.clone();
        out.write(Box::into_raw(Box::new(GrammarMatcher { matcher })));
        Ok(())
    })
}

/// # Safety
/// `matcher` came from mrt_matcher_new and is freed once.
#[no_mangle]
pub unsafe extern "C" fn mrt_matcher_free(matcher: *mut GrammarMatcher) {
    if !matcher.is_null() {
        drop(Box::from_raw(matcher));
    }
}

/// # Safety
/// `matcher` is a live handle that no other thread uses; `tokens` is valid for its size.
#[no_mangle]
pub unsafe extern "C" fn mrt_matcher_consume(
    matcher: *mut GrammarMatcher,
    tokens: *const u32,
    tokens_size: usize,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let matcher = &mut (*matcher).matcher;
        let consumed = matcher.consume_tokens(slice(tokens, tokens_size));
        consumed.map_err(|error| {
            let message = first_line(error);
            // These name a limit. Anything else is output that does not match.
            match message.contains("Parser Error") || message.contains("lexer error") {
                true => Failure::Limit(message),
                false => Failure::Invalid(message),
            }
        })
    })
}

/// # Safety
/// `matcher` is a live handle that no other thread uses; `words` is writable for its size.
#[no_mangle]
pub unsafe extern "C" fn mrt_matcher_mask(
    matcher: *mut GrammarMatcher,
    words: *mut u32,
    words_size: usize,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let matcher = &mut (*matcher).matcher;
        // What was consumed matches, so only a limit can be in the way.
        let mask = matcher.compute_mask_or_eos();
        let mask = mask.map_err(|error| Failure::Limit(first_line(error)))?;
        let words = std::slice::from_raw_parts_mut(words, words_size);
        let mask = mask.as_slice();
        let used = words.len().min(mask.len());
        words[..used].copy_from_slice(&mask[..used]);
        words[used..].fill(0);
        Ok(())
    })
}
