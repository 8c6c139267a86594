//! Grammars in GBNF among those of the other kinds: which they are, and the tokens that they name.

use llguidance::toktrie::TokenId;
use serde_json::Value;

use crate::engine;
use crate::gbnf::{self, TokenRef};
use crate::gbnf_lark::{lark_of, Tokens};
use crate::Failure;

impl Tokens for engine::Tokens {
    fn write(&self, token: &TokenRef, negated: bool) -> Result<String, String> {
        if self.stand_in {
            return Ok("<[0-255]>".to_string());
        }
        let trie = self.trie();
        let id = match token {
            TokenRef::Id(id) if (*id as usize) < trie.vocab_size() => *id,
            TokenRef::Id(id) => {
                return Err(format!(
                    "there is no token {id}; the last is {}",
                    trie.vocab_size() - 1
                ))
            }
            TokenRef::Text(text) => trie
                .get_special_token(text)
                .or_else(|| trie.token_id_at_bytes(text.as_bytes()))
                .ok_or_else(|| format!("{text} is not one token of this model"))?,
        };
        let ends = trie.eos_tokens();
        if negated {
            // An answer ends where the grammar does, not at any token.
            let others: Vec<_> = ends.iter().chain([&id]).map(TokenId::to_string).collect();
            return Ok(format!("<[^{}]>", others.join(",")));
        }
        match ends.contains(&id) {
            true => Err(format!("token {id} ends every answer; leave it out")),
            false => Ok(format!("<[{id}]>")),
        }
    }
}

/// Compiles a grammar without its GBNF, which becomes Lark: in the kinds and notations that workers
/// and journals of the version before know. Returns that text.
pub fn without_gbnf<T>(
    grammar: &str,
    tokens: &engine::Tokens,
    compile: impl Fn(&str) -> Result<T, Failure>,
) -> Result<(String, T), Failure> {
    let (plain, no_gbnf) = plain(grammar, tokens, false)?;
    match (compile(&plain), no_gbnf) {
        (Ok(compiled), _) => Ok((plain, compiled)),
        // The crate panics on some unions of expressions. Single characters have none.
        (Err(Failure::Internal(_)), _) if plain != grammar => {
            let (plain, _) = self::plain(grammar, tokens, true)?;
            let compiled = compile(&plain)?;
            Ok((plain, compiled))
        }
        (Err(Failure::Invalid(why)), Some(error)) => {
            Err(Failure::Invalid(format!("as GBNF, {error}; as Lark, {why}")))
        }
        (Err(failure), _) => Err(failure),
    }
}

/// The second is why the text is not GBNF although it has its form.
fn plain(
    grammar: &str,
    tokens: &engine::Tokens,
    single: bool,
) -> Result<(String, Option<String>), Failure> {
    if let Some(text) = grammar.strip_prefix("lark:").filter(|text| gbnf::has_form(text)) {
        return Ok(match lark_of(text, tokens, single) {
            Ok(lark) => (format!("lark:{lark}"), None),
            Err(error) => (grammar.to_string(), Some(error)),
        });
    }
    let Some(text) = grammar.strip_prefix("reasoned:") else {
        return Ok((grammar.to_string(), None));
    };
    let mut reasoned: Value = serde_json::from_str(text).map_err(Failure::invalid)?;
    let inner = reasoned["grammar"].as_str().unwrap_or("").to_string();
    let (plain, error) = plain(&inner, tokens, single)?;
    if plain == inner {
        return Ok((grammar.to_string(), error));
    }
    reasoned["grammar"] = plain.into();
    Ok((format!("reasoned:{reasoned}"), error))
}
