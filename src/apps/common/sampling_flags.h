// The sampling options of `chat` and `generate`, and their form as fields of an API request.
#pragma once

#include <set>
#include <string>

#include "apps/cli/command.h"
#include "base/json.h"
#include "core/sampling_params.h"

namespace millrace::apps {

// Fields that are not given come from the model's generation_config.json.
struct SamplingFlags {
  SamplingParams params = {.max_tokens = 256};
  std::set<std::string> given = {"max_tokens"};  // by the names that ForEachField has for them
};

void AddSamplingOptions(Command& command, SamplingFlags* flags);
// {"max_tokens": 256, "temperature": 0.5, ...}: the fields that were given.
Json ToFields(const SamplingFlags& flags);

}  // namespace millrace::apps
