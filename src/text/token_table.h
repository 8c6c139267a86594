// The token table of a vocabulary (core/output_grammar.h), from its tokenizer. Pure; any thread.
#pragma once

#include <span>

#include "base/status.h"
#include "core/output_grammar.h"
#include "text/tokenizer.h"

namespace millrace::text {

// `ends`: the tokens that end a sequence. kUnimplemented: the text of this tokenizer's tokens
// depends on their neighbours. kFailedPrecondition: `ends` is empty.
Result<TokenTable> TokenTableOf(const Tokenizer& tokenizer, std::span<const TokenId> ends);

}  // namespace millrace::text
