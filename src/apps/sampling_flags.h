// The sampling options of `chat` and `generate`, and their form as fields of an API request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "base/json.h"

namespace millrace::apps {

// Fields that are not set come from the model's generation_config.json.
struct SamplingFlags {
  int max_tokens = 256;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<double> presence_penalty, frequency_penalty;
  std::optional<int> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

void AddSamplingOptions(Command& command, SamplingFlags* flags);
// {"max_tokens": 256, "temperature": 0.5, ...}: the fields that were given.
Json ToFields(const SamplingFlags& flags);

}  // namespace millrace::apps
