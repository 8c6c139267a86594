#include "serve/stream_record.h"

#include "base/json.h"
#include "text/utf8.h"

namespace millrace::serve {
namespace {

constexpr int kVersion = 1;

template <typename T>
T Field(const Json& record, const char* name) {
  return record.at(name).get<T>();
}

}  // namespace

std::string EncodeStreamRecord(const GenerationSpec& spec) {
  const SamplingParams& params = spec.options.params;
  if (!spec.resumable || spec.prompts.size() != 1 || params.logprobs || params.prompt_logprobs ||
      !text::IsValidUtf8(spec.prompts.front().echo)) {
    return "";
  }
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
                                       {"echoed", spec.prompts.front().echo}});
  return record.size() <= kStreamRecordBytesMax ? record : "";
}

std::optional<GenerationSpec> DecodeStreamRecord(const engine::EarlierRequest& earlier) {
  if (earlier.front_end.empty() || !earlier.params.max_tokens) return std::nullopt;
  const Result<Json> parsed = ParseJson(earlier.front_end);
  if (!parsed.ok()) return std::nullopt;
  GenerationSpec spec;
  PromptInput& prompt = spec.prompts.emplace_back();
  try {
    if (Field<int>(*parsed, "version") != kVersion) return std::nullopt;
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
  } catch (const Json::exception&) {
    return std::nullopt;
  }
  spec.format.stream = true;
  spec.resumable = true;
  spec.request_id = earlier.external_id;
  spec.cache_salt = earlier.cache_salt;
  spec.arrived = earlier.arrived;
  spec.options.params = earlier.params;
  spec.options.stream = true;
  spec.options.priority = earlier.priority;
  prompt.tokens = earlier.prompt;
  prompt.max_tokens = *earlier.params.max_tokens;
  return spec;
}

}  // namespace millrace::serve
