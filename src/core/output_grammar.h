// Constrained output: what the text of a request's output must match, and the interface by which
// the stage that samples finds the tokens that may come next. text/grammars.h implements it for
// real vocabularies, the hash model has its own for tests.
//
// A matcher derives everything from the tokens so far, so preemption, migration, replay and restart
// rebuild its state by calling it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "core/ids.h"

namespace millrace {

// SamplingParams::grammar is "<kind>:<text>". The text is of these kinds:
enum class GrammarKind : uint8_t {
  kJsonSchema,  // "json_schema": a JSON schema, as JSON
  kRegex,       // "regex": a regular expression that the whole output matches
  kChoice,      // "choice": a JSON array of strings, of which the output is one
  kLark,        // "lark": a grammar in the Lark notation of llguidance, or in GBNF, by its form
  kTags,        // "tags": structural tags, as JSON: free text with constrained parts
  kReasoned,    // "reasoned": reasoning before another grammar, as JSON (rust/src/grammar.rs)
};
std::string GrammarOf(GrammarKind kind, std::string_view text);
// kInvalidArgument: no such kind, no text, or beyond kGrammarBytesMax. Whether the text is a sound
// grammar is known to those who compile it.
Status CheckGrammar(std::string_view grammar);

// Of one sequence. One thread.
class TokenMatcher {
 public:
  virtual ~TokenMatcher() = default;
  // The tokens that may follow `output`, all that the sequence has generated: token t if bit t % 32
  // of word t / 32 is set; empty: all. After a complete match, the end-of-sequence tokens. Waits
  // until the grammar is compiled. Valid until the next call. kInvalidArgument: it is unsound, or
  // takes more work than the limits allow; kInternal: `output` does not match, or a fault of ours.
  virtual Result<std::span<const uint32_t>> Allowed(std::span<const TokenId> output) = 0;
  // Whether `next` may follow `output`; `ends`: it is an end-of-sequence token. Much cheaper than
  // Allowed, and does not wait: true if the grammar is not compiled, or is at a limit.
  virtual bool Takes(std::span<const TokenId> output, TokenId next, bool ends) = 0;
};

// Whether a mask of Allowed has the token, which is not negative.
bool InMask(std::span<const uint32_t> allowed, TokenId token);

// The grammars of one vocabulary. Any thread.
class GrammarSource {
 public:
  virtual ~GrammarSource() = default;
  // Returns at once. Compiles in the background if the grammar is not at hand, so that it is done
  // while the prompt is computed.
  virtual std::unique_ptr<TokenMatcher> MatcherOf(const std::string& grammar) = 0;
};

// The texts of a vocabulary's tokens, as bytes that a worker gets from its controller
// (text/token_table.h).
struct TokenTable {
  std::string digest;                        // of `bytes`
  std::shared_ptr<const std::string> bytes;  // never null
};

}  // namespace millrace
