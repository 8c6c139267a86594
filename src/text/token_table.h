// The token table of a vocabulary (core/output_grammar.h), as bytes:
// "mrtable1", then as little-endian uint32 the number of tokens, the number of ends, and the ends;
// then each token as a uint32 (twice the size of its text, plus one if it is special) and its text.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "core/output_grammar.h"
#include "text/tokenizer.h"

namespace millrace::text {

// `ends`: the tokens that end a sequence. kUnimplemented: the text of this tokenizer's tokens
// depends on their neighbours. kFailedPrecondition: `ends` is empty.
Result<TokenTable> TokenTableOf(const Tokenizer& tokenizer, std::span<const TokenId> ends);

// A vocabulary of the 256 bytes, which stands for any other: tokens that a grammar names are taken
// to exist. What a grammar takes to compile hardly depends on the vocabulary.
TokenTable ByteTable();

// The size of the vocabulary; 0: the table is malformed.
uint32_t TokensIn(const TokenTable& table);

}  // namespace millrace::text
