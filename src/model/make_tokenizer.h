// The tokenizer of made-up models: byte-level BPE with four special tokens, the 256 bytes, then
// pairs and triples of bytes up to the requested vocabulary. Any text round-trips. Pure; any
// thread.
#pragma once

#include <string>

#include "base/status.h"
#include "core/ids.h"

namespace millrace::model {

inline constexpr TokenId kMadeUnk = 0, kMadeBos = 1, kMadeEos = 2, kMadePad = 3;
inline constexpr int kMadeVocabMin = 4 + 256;
inline constexpr int kMadeVocabMax = 4 + 256 + 256 * 256 + 256 * 256 * 16;

// tokenizer.json. REQUIRES: vocab_size in [kMadeVocabMin, kMadeVocabMax].
std::string MadeTokenizerJson(int vocab_size);
// tokenizer_config.json, with a chat template.
std::string MadeTokenizerConfigJson(int max_position);

}  // namespace millrace::model
