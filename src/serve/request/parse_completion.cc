#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "serve/http/limits.h"
#include "serve/request/ignored_fields.h"
#include "serve/request/parse_common.h"
#include "serve/request/request.h"

namespace millrace::serve {
namespace {

void ReadLengths(FieldReader& reader, CompletionRequest& request) {
  SamplingParams& params = request.options.params;
  std::optional<int> max_tokens = kCompletionMaxTokensDefault;
  const int64_t low = request.echo ? 0 : 1;  // an echo without output scores the prompt
  reader.Int("max_tokens", low, std::numeric_limits<int32_t>::max(), max_tokens);
  request.echo_only = max_tokens == 0;
  params.max_tokens = request.echo_only ? 1 : max_tokens;
}

}  // namespace

Parsed<CompletionRequest> ParseCompletionRequest(std::string_view body,
                                                 const ParseContext& context) {
  Parsed<Json> parsed = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  CompletionRequest request;
  FieldReader reader(std::get<Json>(parsed));
  SamplingParams& params = request.options.params;
  ReadEnvelope(reader, request.options);
  ReadPrompts(reader, "prompt", context.vocab_size, request.prompts);
  if (request.options.metrics && request.prompts.size() > 1) {
    reader.Fail("return_metrics",
                fmt::format("return_metrics is for one prompt, this request has {}",
                            request.prompts.size()));
  }
  reader.Bool("echo", request.echo);
  if (request.echo && request.options.truncation.wanted) {
    reader.Fail("truncate_prompt_tokens", "truncate_prompt_tokens does not go with echo");
  }
  reader.Bool("add_special_tokens", request.add_special_tokens);
  request.parse_special = context.parse_special_default;
  reader.Bool("parse_special", request.parse_special);
  ReadSampling(reader, context.defaults, request.options);
  ReadLengths(reader, request);
  reader.Int("logprobs", 0, kTopLogprobsMax, params.logprobs);
  if (!params.logprob_token_ids.empty()) params.logprobs = params.logprobs.value_or(0);
  const Json* suffix = reader.Find("suffix");
  if (suffix != nullptr && !suffix->is_string()) {
    reader.Fail("suffix", fmt::format("suffix must be a string, got {}", Describe(*suffix)));
  }
  reader.Unsupported("suffix", "put the whole text into the prompt");
  ReadConstraint(reader, FieldsOf(body), request.options);
  RefuseUnsupported(reader);
  IgnoreKnownFields(reader);
  if (params.prompt_logprobs && request.options.stream) {
    reader.Fail("prompt_logprobs", "prompt_logprobs is not available with \"stream\": true");
  }
  request.wants_prompt_logprobs = params.prompt_logprobs.has_value();
  if (request.echo && params.logprobs) {
    params.prompt_logprobs = std::max(*params.logprobs, params.prompt_logprobs.value_or(0));
  }
  CheckSampling(reader, context.vocab_size, request.options);
  if (reader.error()) return *reader.error();
  request.options.ignored = IgnoredHeaderValue(reader);
  return request;
}

}  // namespace millrace::serve
