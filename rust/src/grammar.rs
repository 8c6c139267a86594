//! Constrained output: `llguidance` over a table of the tokens' bytes. A vocabulary compiles
//! grammars; a matcher follows one sequence.

use std::sync::Arc;

use anyhow::{anyhow, bail, ensure};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId,
};
use llguidance::{earley::SlicedBiasComputer, regex_to_lark, ParserFactory};
use serde_json::{json, Value};

use crate::engine::{Allowed, Engine, Tokens};
use crate::matcher::{Grammar, Matcher, Start};
use crate::reasoned::Reasoned;
use crate::schema::prepare;
use crate::schema_place::locate;
use crate::{enter, give_bytes, slice, text, Bytes, Failure};

const MAGIC: &[u8] = b"mrtable1";
/// Of a table that stands for one with tokens that it does not have.
const STAND_IN_MAGIC: &[u8] = b"mrbytes1";
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
    tokens: Arc<Tokens>,
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
    let magic = reader.take(MAGIC.len())?;
    ensure!(magic == MAGIC || magic == STAND_IN_MAGIC, "this is no token table");
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
        let stand_in = table.starts_with(STAND_IN_MAGIC);
        Ok(Vocabulary { tokens: Arc::new(Tokens::new(env, factory, stand_in)) })
    }
}

/// Compiles "<kind>:<text>".
pub fn compile(tokens: &Arc<Tokens>, grammar: &str) -> anyhow::Result<Start> {
    let Some(reasoned) = grammar.strip_prefix("reasoned:") else {
        return Ok(Start::Plain(engine_of(tokens, grammar)?));
    };
    let options: Value = serde_json::from_str(reasoned)?;
    let body = match options["grammar"].as_str().unwrap_or("") {
        "" => None,
        body => Some(engine_of(tokens, body)?),
    };
    Ok(Start::Reasoned(Arc::new(Reasoned::new(tokens, &options, body)?)))
}

fn engine_of(tokens: &Arc<Tokens>, grammar: &str) -> anyhow::Result<Engine> {
    let Some(schema) = grammar.strip_prefix("json_schema:") else {
        return Engine::new(tokens, top_level(tokens, grammar)?);
    };
    let schema = schema_of(schema)?;
    let compiled = |schema: &Value| {
        Engine::new(tokens, TopLevelGrammar::from_json_schema(schema.clone())).map_err(first_line)
    };
    compiled(&schema).map_err(|why| {
        match locate(&schema, &why, &mut |schema| compiled(schema).err()) {
            Some(located) => anyhow!(located),
            None => anyhow!(why),
        }
    })
}

/// The errors of the crate show the place in the grammar and may carry a backtrace.
pub fn first_line(error: anyhow::Error) -> String {
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

fn top_level(tokens: &Tokens, grammar: &str) -> anyhow::Result<TopLevelGrammar> {
    let (kind, text) = grammar.split_once(':').ok_or_else(|| anyhow!("it has no kind"))?;
    Ok(match kind {
        "json_schema" => TopLevelGrammar::from_json_schema(schema_of(text)?),
        "regex" => TopLevelGrammar::from_regex(without_anchors(text)),
        "choice" => TopLevelGrammar::from_lark(lark_of_choice(&serde_json::from_str(text)?)?),
        "lark" => {
            check_attributes(text)?;
            TopLevelGrammar::from_lark(with_prepared_schemas(text)?)
        }
        "tags" => {
            let tags = serde_json::from_str(text)?;
            TopLevelGrammar::from_lark(lark_of_tags(&tags, &tokens.special_texts())?)
        }
        _ => bail!("{kind} is no kind of grammar"),
    })
}

fn schema_of(text: &str) -> anyhow::Result<Value> {
    let mut schema = serde_json::from_str(text)?;
    prepare(&mut schema)?;
    Ok(schema)
}

/// Schemas within a grammar follow "%json".
fn with_prepared_schemas(lark: &str) -> anyhow::Result<String> {
    const MARK: &str = "%json";
    let mut out = String::with_capacity(lark.len());
    let mut rest = lark;
    while let Some(at) = rest.find(MARK) {
        let (before, after) = rest.split_at(at + MARK.len());
        out += before;
        rest = after;
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        // Anything else is text of the grammar.
        let Some(Ok(mut schema @ Value::Object(_))) = values.next() else { continue };
        rest = &rest[values.byte_offset()..];
        let line = before.rsplit('\n').next().unwrap_or("");
        let rule = line.split(':').next().unwrap_or("").trim();
        prepare(&mut schema).map_err(|why| anyhow!("{rule}: {why}"))?;
        out += &format!(" {schema}");
    }
    Ok(out + rest)
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

/// A special token and its text.
type Special = (String, TokenId);

/// A text, of which special tokens may be spelled or be themselves.
fn spelled(text: &str, specials: &[Special]) -> String {
    let first = specials.iter().filter_map(|special| Some((text.find(&special.0)?, special)));
    // Of those that begin at one place, the longest.
    match first.min_by_key(|(at, special)| (*at, usize::MAX - special.0.len())) {
        None if text.is_empty() => String::new(),
        None => literal(text),
        Some((at, (special, id))) => {
            let before = match at {
                0 => String::new(),
                _ => literal(&text[..at]),
            };
            let after = spelled(&text[at + special.len()..], specials);
            format!("{before} ({} | <[{id}]>) {after}", literal(special))
        }
    }
}

/// Free text; where one of the triggers comes, one of the structures that begin with it follows.
fn lark_of_tags(tags: &Value, specials: &[Special]) -> anyhow::Result<String> {
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
        let used = trigger_of(begin, &triggers)?;
        let trigger = triggers[used];
        let rest = spelled(&begin[trigger.len()..], specials);
        let end = spelled(string_of(structure, "end")?, specials);
        let mut schema = structure.get("schema").cloned().unwrap_or(json!({}));
        prepare(&mut schema).map_err(|why| anyhow!("structures[{i}]: {why}"))?;
        let mut opened = format!("free_{used} {rest}");
        let special = specials.iter().filter(|(text, _)| trigger.starts_with(text));
        if let Some((text, id)) = special.max_by_key(|(text, _)| text.len()) {
            let rest = spelled(&begin[text.len()..], specials);
            opened = format!("({opened} | TAIL? <[{id}]> {rest})");
        }
        rules += &format!("tag_{i}: {opened} body_{i} {end}\nbody_{i}: %json {schema}\n");
        parts.push(format!("tag_{i}"));
    }
    for (k, trigger) in triggers.iter().enumerate() {
        rules += &format!("free_{k}[lazy]: /(.|\\n)*{}/\n", regex_to_lark(&escaped(trigger), ""));
    }
    Ok(format!("start: ({})* TAIL\nTAIL: /(.|\\n)*/\n{rules}", parts.join(" | ")))
}

/// The trigger that a structure comes after: the first that has come when its beginning is written.
fn trigger_of(begin: &str, triggers: &[&str]) -> anyhow::Result<usize> {
    let prefixes = triggers.iter().enumerate().filter(|(_, trigger)| begin.starts_with(**trigger));
    let Some((used, trigger)) = prefixes.min_by_key(|(_, trigger)| trigger.len()) else {
        bail!("no trigger is the beginning of {begin:?}");
    };
    let before_its_end = &trigger.as_bytes()[..trigger.len() - 1];
    let comes_first =
        |other: &&&str| before_its_end.windows(other.len()).any(|part| part == other.as_bytes());
    match triggers.iter().find(comes_first) {
        Some(other) => bail!("the trigger {other:?} would come within {trigger:?}"),
        None => Ok(used),
    }
}

/// Attributes of rules that would be ignored, or have the parser go back over what has been sent.
fn check_attributes(lark: &str) -> anyhow::Result<()> {
    for line in lark.lines() {
        let Some((rule, rest)) = line.split_once('[') else { continue };
        let rule = rule.trim().trim_start_matches(['?', '!']);
        let is_name = |c: char| c.is_alphanumeric() || "_-:%".contains(c);
        if rule.is_empty() || !rule.chars().all(is_name) {
            continue;
        }
        let Some((attributes, _)) = rest.split_once(']') else { continue };
        for attribute in attributes.split(',') {
            let (name, value) = attribute.split_once('=').unwrap_or((attribute, ""));
            match (name.trim(), value.trim()) {
                ("stop", "\"\"") => (),
                ("stop" | "stop_capture", _) => bail!(
                    "\"{}\" of the rule {rule} is not supported: the text that stops it would have \
                     to be taken back; use suffix=, which is a part of the answer",
                    name.trim()
                ),
                ("temperature", _) => bail!(
                    "\"temperature\" of the rule {rule} is not supported; set the temperature of the \
                     request"
                ),
                _ => (),
            }
        }
    }
    Ok(())
}

/// A regular expression of this text.
pub fn escaped(text: &str) -> String {
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
        let compiled = Grammar::new(&(*vocabulary).tokens, text(grammar, grammar_size)?)?;
        out.write(Box::into_raw(Box::new(compiled)));
        Ok(())
    })
}

/// # Safety
/// `grammar` is a live handle; `out` is writable.
#[no_mangle]
pub unsafe extern "C" fn mrt_grammar_text(grammar: *const Grammar, out: *mut Bytes) {
    give_bytes(out, (*grammar).text().as_bytes().to_vec());
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
    out: *mut *mut Matcher,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        out.write(Box::into_raw(Box::new((*grammar).matcher())));
        Ok(())
    })
}

/// # Safety
/// `matcher` came from mrt_matcher_new and is freed once.
#[no_mangle]
pub unsafe extern "C" fn mrt_matcher_free(matcher: *mut Matcher) {
    if !matcher.is_null() {
        drop(Box::from_raw(matcher));
    }
}

/// # Safety
/// `matcher` is a live handle that no other thread uses; `tokens` is valid for its size.
#[no_mangle]
pub unsafe extern "C" fn mrt_matcher_consume(
    matcher: *mut Matcher,
    tokens: *const u32,
    tokens_size: usize,
    error: *mut Bytes,
) -> i32 {
    enter(error, || (*matcher).consume(slice(tokens, tokens_size)))
}

/// # Safety
/// `matcher` is a live handle that no other thread uses; `words` is writable for its size, and so
/// are `any` and `error`.
#[no_mangle]
pub unsafe extern "C" fn mrt_matcher_mask(
    matcher: *mut Matcher,
    words: *mut u32,
    words_size: usize,
    any: *mut i32,
    error: *mut Bytes,
) -> i32 {
    enter(error, || {
        let allowed = (*matcher).mask()?;
        any.write(matches!(allowed, Allowed::Any).into());
        let Allowed::These(mask) = allowed else { return Ok(()) };
        let words = std::slice::from_raw_parts_mut(words, words_size);
        let mask = mask.as_slice();
        let used = words.len().min(mask.len());
        words[..used].copy_from_slice(&mask[..used]);
        words[used..].fill(0);
        Ok(())
    })
}

/// # Safety
/// `matcher` is a live handle that no other thread uses.
#[no_mangle]
pub unsafe extern "C" fn mrt_matcher_break_for_test(matcher: *mut Matcher) {
    (*matcher).break_for_test();
}
