#include "serve/generation/stream_record.h"

#include <algorithm>

#include "base/json.h"
#include "text/utf8.h"

namespace millrace::serve {
namespace {

constexpr int kVersion = 2;
constexpr int kVersionOfOnePrompt = 1;

template <typename T>
T Field(const Json& record, const char* name) {
  return record.at(name).get<T>();
}

// Whether a prompt has so many log-probabilities that they could fill a record of the journal.
bool TooMany(const GenerationSpec& spec) {
  const auto& params = spec.options.params;
  if (!params.prompt_logprobs) return false;
  int64_t longest = 0;
  for (const PromptInput& prompt : spec.prompts) {
    longest = std::max<int64_t>(longest, std::ssize(prompt.tokens));
  }
  return longest * (*params.prompt_logprobs + 1) > kStreamPromptLogprobsMax;
}

}  // namespace

std::string EncodeStreamRecord(const GenerationSpec& spec, int prompt) {
  const std::string& echo = spec.prompts[static_cast<size_t>(prompt)].echo;
  if (!spec.resumable || TooMany(spec) || !text::IsValidUtf8(echo)) return "";
  const std::string record = DumpJson({{"version", kVersion},
                                       {"owner", spec.owner},
                                       {"id", spec.head.id},
                                       {"created", spec.head.created},
                                       {"model", spec.head.model},
                                       {"route", spec.route},
                                       {"chat", spec.format.chat},
                                       {"include_usage", spec.format.include_usage},
                                       {"continuous_usage", spec.format.continuous_usage},
                                       {"echo", spec.echo},
                                       {"echo_only", spec.echo_only},
                                       {"echoed", echo},
                                       {"prompt", prompt},
                                       {"prompts", spec.prompts.size()},
                                       {"token_ids", spec.options.token_ids},
                                       {"tokens_as_ids", spec.options.tokens_as_ids},
                                       {"split", ToJson(spec.split)}});
  return record.size() <= kStreamRecordBytesMax ? record : "";
}

std::optional<StreamPart> DecodeStreamRecord(const cluster::RecoveredRequest& earlier) {
  if (earlier.front_end.empty() || !earlier.params.max_tokens) return std::nullopt;
  const Result<Json> parsed = ParseJson(earlier.front_end);
  if (!parsed.ok()) return std::nullopt;
  StreamPart part;
  GenerationSpec& spec = part.spec;
  PromptInput& prompt = spec.prompts.emplace_back();
  try {
    const int version = Field<int>(*parsed, "version");
    if (version != kVersion && version != kVersionOfOnePrompt) return std::nullopt;
    if (version == kVersion) {
      part.prompt = Field<int>(*parsed, "prompt");
      part.prompts = Field<int>(*parsed, "prompts");
      if (part.prompt < 0 || part.prompt >= part.prompts) return std::nullopt;
    }
    spec.owner = Field<std::string>(*parsed, "owner");
    spec.head.id = Field<std::string>(*parsed, "id");
    spec.head.created = Field<int64_t>(*parsed, "created");
    spec.head.model = Field<std::string>(*parsed, "model");
    spec.route = Field<std::string>(*parsed, "route");
    spec.format.chat = Field<bool>(*parsed, "chat");
    spec.format.include_usage = Field<bool>(*parsed, "include_usage");
    spec.format.continuous_usage = Field<bool>(*parsed, "continuous_usage");
    spec.echo = Field<bool>(*parsed, "echo");
    spec.echo_only = Field<bool>(*parsed, "echo_only");
    prompt.echo = Field<std::string>(*parsed, "echoed");
    spec.options.token_ids = parsed->value("token_ids", false);
    spec.options.tokens_as_ids = parsed->value("tokens_as_ids", false);
    if (parsed->contains("split")) spec.split = SplitFromJson(parsed->at("split"));
  } catch (const Json::exception&) {
    return std::nullopt;
  }
  spec.format.stream = true;
  spec.resumable = spec.event_per_token = true;
  spec.request_id = earlier.external_id;
  spec.cache_salt = earlier.cache_salt;
  spec.arrived = earlier.arrived;
  spec.options.params = earlier.params;
  spec.options.stream = true;
  spec.options.priority = earlier.priority;
  prompt.tokens = earlier.prompt;
  prompt.max_tokens = *earlier.params.max_tokens;
  return part;
}

}  // namespace millrace::serve
