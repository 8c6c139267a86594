//! The file's normalizer, with a budget for the size of what it makes, and for a text that is given
//! in pieces.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::OnceLock;

use serde_json::Value;
use tokenizers::normalizers::{Precompiled, Strip};
use tokenizers::utils::SysRegex;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

use crate::load_limits::{longest_replacement, TokenizerLimits};
use crate::Failure;

/// How far a step can multiply a text, as it is known before it runs.
enum Growth {
    /// By a small factor that Unicode bounds.
    Bounded,
    Literal {
        pattern: String,
        content: usize,
    },
    Regex {
        regex: SysRegex,
        content: usize,
    },
    Charsmap {
        longest: usize,
    },
    Once(usize),
}

struct Step {
    normalizer: NormalizerWrapper,
    growth: Growth,
    inside: Inside,
}

/// What a step does to a piece that is not the beginning of the text.
enum Inside {
    Same,
    Nothing,
    Other(NormalizerWrapper),
}

/// The steps of a normalizer in order, without nesting.
pub struct Steps(Vec<Step>);

impl Steps {
    /// `file` is the JSON of `normalizer`.
    pub fn new(normalizer: Option<&NormalizerWrapper>, file: &Value) -> Result<Steps, Failure> {
        let mut steps = Vec::new();
        if let Some(normalizer) = normalizer {
            flatten(normalizer, file, &mut steps)?;
        }
        Ok(Steps(steps))
    }

    /// Of one encoding, or of one piece of one.
    pub fn run(&self, text_bytes: usize, inside: bool, limits: &TokenizerLimits) -> Run<'_> {
        let bytes = text_bytes.saturating_mul(limits.growth_max);
        Run::new(self, bytes.saturating_add(limits.growth_bytes_free), inside)
    }

    pub fn run_within(&self, bytes: usize) -> Run<'_> {
        Run::new(self, bytes, false)
    }
}

fn flatten(
    normalizer: &NormalizerWrapper,
    file: &Value,
    steps: &mut Vec<Step>,
) -> Result<(), Failure> {
    if let NormalizerWrapper::Sequence(sequence) = normalizer {
        for (i, child) in sequence.as_ref().iter().enumerate() {
            flatten(child, &file["normalizers"][i], steps)?;
        }
        return Ok(());
    }
    let growth = match normalizer {
        NormalizerWrapper::Prepend(step) => Growth::Once(step.prepend.len()),
        NormalizerWrapper::Precompiled(_) => {
            let charsmap = file["precompiled_charsmap"].as_str().unwrap_or("");
            Growth::Charsmap { longest: longest_replacement(charsmap)? }
        }
        NormalizerWrapper::Replace(step) => {
            let content = step.content.len();
            match (file["pattern"]["String"].as_str(), file["pattern"]["Regex"].as_str()) {
                (Some(pattern), _) => Growth::Literal { pattern: pattern.to_string(), content },
                (_, Some(regex)) => Growth::Regex {
                    regex: SysRegex::new(regex).map_err(Failure::invalid)?,
                    content,
                },
                _ => return Err(Failure::invalid("a Replace of normalizer has no pattern")),
            }
        }
        _ => Growth::Bounded,
    };
    let inside = match normalizer {
        NormalizerWrapper::Prepend(_) => Inside::Nothing,
        NormalizerWrapper::StripNormalizer(step) => {
            Inside::Other(NormalizerWrapper::StripNormalizer(Strip::new(false, step.strip_right)))
        }
        _ => Inside::Same,
    };
    steps.push(Step { normalizer: normalizer.clone(), growth, inside });
    Ok(())
}

impl Step {
    /// At most this many bytes come out. Counts matches only where a cheap bound is beyond `left`.
    fn bytes_at_most(&self, text: &str, left: usize) -> usize {
        let by_count = |matches: usize, content: usize| {
            matches.saturating_mul(content).saturating_add(text.len())
        };
        match &self.growth {
            Growth::Bounded => text.len(),
            Growth::Once(bytes) => text.len().saturating_add(*bytes),
            Growth::Literal { pattern, content } => {
                let bound = by_count(text.len() / pattern.len().max(1) + 1, *content);
                if bound <= left {
                    bound
                } else {
                    by_count(text.matches(pattern).count(), *content)
                }
            }
            Growth::Regex { regex, content } => {
                let bound = by_count(text.len() + 1, *content);
                if bound <= left {
                    bound
                } else {
                    by_count(regex.find_iter(text).count(), *content)
                }
            }
            Growth::Charsmap { longest } => {
                let bound = by_count(text.len(), *longest);
                match &self.normalizer {
                    NormalizerWrapper::Precompiled(map) if bound > left => {
                        charsmap_bytes(map, text)
                    }
                    _ => bound,
                }
            }
        }
    }
}

/// At least what the map makes of the text: each character with as much as a key may have after it,
/// and alone.
fn charsmap_bytes(map: &Precompiled, text: &str) -> usize {
    const KEY_BYTES: usize = 5; // longer graphemes are looked up by character
    text.char_indices()
        .map(|(at, c)| {
            let mut end = (at + KEY_BYTES).min(text.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            let end = end.max(at + c.len_utf8());
            let of = |part: &str| map.transform(part).map_or(0, str::len);
            c.len_utf8().max(of(&text[at..end])).max(of(&text[at..at + c.len_utf8()]))
        })
        .sum()
}

/// One run over the parts of a text. The crate drops a normalizer's error, so it is kept here.
pub struct Run<'a> {
    steps: &'a Steps,
    budget: usize,
    left: AtomicUsize,
    inside: bool,
    failure: OnceLock<String>, // the first one
}

impl<'a> Run<'a> {
    fn new(steps: &'a Steps, budget: usize, inside: bool) -> Run<'a> {
        Run { steps, budget, left: AtomicUsize::new(budget), inside, failure: OnceLock::new() }
    }

    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    fn check(&self, step: Option<&Step>, bytes: usize) -> tokenizers::Result<()> {
        if bytes <= self.left.load(Relaxed) {
            return Ok(());
        }
        let name = step.map_or("", |step| name_of(&step.normalizer));
        let budget = self.budget;
        Err(format!(
            "the tokenizer's normalizer ({name}) makes more than {budget} bytes of the text"
        )
        .into())
    }
}

impl Normalizer for Run<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        if self.failure().is_some() {
            return Ok(());
        }
        let inside = self.inside && text.offsets_original().0 == 0;
        for step in &self.steps.0 {
            let normalizer = match &step.inside {
                Inside::Nothing if inside => continue,
                Inside::Other(other) if inside => other,
                _ => &step.normalizer,
            };
            let within = self
                .check(Some(step), step.bytes_at_most(text.get(), self.left.load(Relaxed)))
                .and_then(|()| normalizer.normalize(text))
                .and_then(|()| self.check(Some(step), text.get().len()));
            if let Err(error) = within {
                self.failure.get_or_init(|| error.to_string());
                return Ok(());
            }
        }
        let left = self.left.load(Relaxed).saturating_sub(text.get().len());
        self.left.store(left, Relaxed);
        Ok(())
    }
}

fn name_of(normalizer: &NormalizerWrapper) -> &'static str {
    match normalizer {
        NormalizerWrapper::Prepend(_) => "Prepend",
        NormalizerWrapper::Precompiled(_) => "Precompiled",
        NormalizerWrapper::Replace(_) => "Replace",
        NormalizerWrapper::ByteLevel(_) => "ByteLevel",
        _ => "Unicode normalization",
    }
}
