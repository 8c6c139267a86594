// What the front end keeps with each request that a journal records: enough to write the event
// stream it is part of on in another life of the server. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "engine/recovered_requests.h"
#include "serve/generation.h"

namespace millrace::serve {

inline constexpr size_t kStreamRecordBytesMax = 64u << 10;

// Beyond it the log-probabilities of a prompt are too many to be kept.
inline constexpr int64_t kStreamPromptLogprobsMax = 1 << 20;

// Of one prompt of a stream that can be resumed; empty when another life could not go on with it:
// with an echo or log-probabilities of a prompt that are too long to be kept.
std::string EncodeStreamRecord(const GenerationSpec& spec, int prompt);

struct StreamPart {
  GenerationSpec spec;  // as it was, but for the other prompts
  int prompt = 0;
  int prompts = 1;
};
// nullopt: not a stream that can be gone on with, or another program's.
std::optional<StreamPart> DecodeStreamRecord(const engine::RecoveredRequest& earlier);

}  // namespace millrace::serve
