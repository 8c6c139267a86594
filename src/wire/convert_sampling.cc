#include <limits>

#include "core/sampling_params.h"
#include "wire/checks.h"
#include "wire/convert.h"

namespace millrace::wire {

void ToProto(const SamplingParams& from, proto::SamplingParams& to) {
  const auto& [n, max_tokens, min_tokens, temperature, top_p, top_k, min_p, repetition_penalty,
               presence_penalty, frequency_penalty, seed, logit_bias, stop_token_ids, stop,
               include_stop_str_in_output, ignore_eos, skip_special_tokens, logprobs,
               prompt_logprobs] = from;
  to.set_n(static_cast<uint32_t>(n));
  if (max_tokens) to.set_max_tokens(static_cast<uint32_t>(*max_tokens));
  to.set_min_tokens(static_cast<uint32_t>(min_tokens));
  to.set_temperature(temperature);
  to.set_top_p(top_p);
  to.set_top_k(static_cast<uint32_t>(top_k));
  to.set_min_p(min_p);
  to.set_repetition_penalty(repetition_penalty);
  to.set_presence_penalty(presence_penalty);
  to.set_frequency_penalty(frequency_penalty);
  if (seed) to.set_seed(*seed);
  for (const auto& [token, bias] : logit_bias) {
    proto::TokenBias& entry = *to.add_logit_bias();
    entry.set_token(static_cast<uint32_t>(token));
    entry.set_bias(bias);
  }
  to.mutable_stop_token_ids()->Add(stop_token_ids.begin(), stop_token_ids.end());
  for (const std::string& text : stop) to.add_stop(text);
  to.set_include_stop_str_in_output(include_stop_str_in_output);
  to.set_ignore_eos(ignore_eos);
  to.set_skip_special_tokens(skip_special_tokens);
  if (logprobs) to.set_logprobs(static_cast<uint32_t>(*logprobs));
  if (prompt_logprobs) to.set_prompt_logprobs(static_cast<uint32_t>(*prompt_logprobs));
}

Status FromProto(const proto::SamplingParams& from, SamplingParams& out) {
  MR_RETURN_IF_ERROR(Take("n", from.n(), out.n));
  if (from.has_max_tokens()) {
    MR_RETURN_IF_ERROR(Take("max_tokens", from.max_tokens(), out.max_tokens.emplace()));
  }
  MR_RETURN_IF_ERROR(Take("min_tokens", from.min_tokens(), out.min_tokens));
  out.temperature = from.temperature();
  out.top_p = from.top_p();
  MR_RETURN_IF_ERROR(Take("top_k", from.top_k(), out.top_k));
  out.min_p = from.min_p();
  out.repetition_penalty = from.repetition_penalty();
  out.presence_penalty = from.presence_penalty();
  out.frequency_penalty = from.frequency_penalty();
  if (from.has_seed()) out.seed = from.seed();
  MR_RETURN_IF_ERROR(
      CheckCount("logit_bias", static_cast<size_t>(from.logit_bias_size()), kLogitBiasMax));
  for (const proto::TokenBias& entry : from.logit_bias()) {
    auto& [token, bias] = out.logit_bias.emplace_back();
    MR_RETURN_IF_ERROR(Take("logit_bias", entry.token(), token));
    bias = entry.bias();
  }
  MR_RETURN_IF_ERROR(
      TakeIndices("stop_token_ids", from.stop_token_ids(), kStopTokensMax, out.stop_token_ids));
  MR_RETURN_IF_ERROR(CheckCount("stop", static_cast<size_t>(from.stop_size()), kStopStringsMax));
  out.stop.assign(from.stop().begin(), from.stop().end());
  out.include_stop_str_in_output = from.include_stop_str_in_output();
  out.ignore_eos = from.ignore_eos();
  out.skip_special_tokens = from.skip_special_tokens();
  if (from.has_logprobs()) {
    MR_RETURN_IF_ERROR(Take("logprobs", from.logprobs(), out.logprobs.emplace()));
  }
  if (from.has_prompt_logprobs()) {
    MR_RETURN_IF_ERROR(
        Take("prompt_logprobs", from.prompt_logprobs(), out.prompt_logprobs.emplace()));
  }
  // The vocabulary is not known here; the sampling stage checks ids against it.
  return Validate(out, std::numeric_limits<int>::max());
}

}  // namespace millrace::wire
