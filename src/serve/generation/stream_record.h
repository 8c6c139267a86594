// Stream records: the data that the front end stores in the journal with each request of a
// resumable stream, so that the next run of the server can continue the stream. Pure functions, any
// thread.
#pragma once

#include <optional>
#include <string>

#include "cluster/recovered_requests.h"
#include "serve/generation/generation.h"

namespace millrace::serve {

inline constexpr size_t kStreamRecordBytesMax = 64u << 10;

// A stream with more log-probabilities of a prompt than this is not recorded.
inline constexpr int64_t kStreamPromptLogprobsMax = 1 << 20;

// The record of one prompt of a stream. Empty if the next run could not continue the stream: it is
// not resumable, or its echo or its prompt's log-probabilities cannot be recorded.
std::string EncodeStreamRecord(const GenerationSpec& spec, int prompt);

struct StreamPart {
  GenerationSpec spec;  // the original one, with this prompt only
  int prompt = 0;
  int prompts = 1;
};
// nullopt if the request is not part of a resumable stream, or another version wrote the record.
std::optional<StreamPart> DecodeStreamRecord(const cluster::RecoveredRequest& earlier);

}  // namespace millrace::serve
