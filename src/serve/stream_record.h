// What the front end keeps with a request that a journal records: enough to write its event stream
// on in another life of the server. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "engine/earlier_requests.h"
#include "serve/generation.h"

namespace millrace::serve {

inline constexpr size_t kStreamRecordBytesMax = 64u << 10;

// Of a stream that can be resumed; empty when another life could not go on with it: of several
// prompts, with log-probabilities, or with an echo that is too long to be kept.
std::string EncodeStreamRecord(const GenerationSpec& spec);

// The spec as it was; nullopt: not a stream that can be gone on with, or another program's.
std::optional<GenerationSpec> DecodeStreamRecord(const engine::EarlierRequest& earlier);

}  // namespace millrace::serve
