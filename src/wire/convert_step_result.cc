#include <fmt/format.h>

#include "wire/checks.h"
#include "wire/convert.h"

namespace millrace::wire {
namespace {

void PutLogprob(const TokenLogprob& from, proto::PositionLogprobs& to) {
  const auto& [token, logprob, rank] = from;
  to.add_token(static_cast<uint32_t>(token));
  to.add_logprob(logprob);
  to.add_rank(static_cast<uint32_t>(rank));
}

Status TakeSequence(const proto::SequenceResult& from, SequenceResult& out) {
  out.id = SequenceId(from.id());
  if (from.has_token()) {
    MR_RETURN_IF_ERROR(Take("token", from.token(), out.token.emplace()));
  }
  if (from.has_logprobs()) {
    MR_RETURN_IF_ERROR(FromProto(from.logprobs(), out.logprobs.emplace()));
  }
  MR_RETURN_IF_ERROR(CheckCount("prompt_logprobs", static_cast<size_t>(from.prompt_logprobs_size()),
                                kTokensPerStepMax));
  out.prompt_logprobs.resize(static_cast<size_t>(from.prompt_logprobs_size()));
  for (int i = 0; i < from.prompt_logprobs_size(); ++i) {
    MR_RETURN_IF_ERROR(
        FromProto(from.prompt_logprobs(i), out.prompt_logprobs[static_cast<size_t>(i)]));
  }
  MR_RETURN_IF_ERROR(
      CheckCount("pooled", static_cast<size_t>(from.pooled_size()), kPooledNumbersMax));
  out.pooled.assign(from.pooled().begin(), from.pooled().end());
  if (from.has_error()) MR_RETURN_WITHIN("error", FromProto(from.error(), out.error));
  return OkStatus();
}

}  // namespace

void ToProto(const PositionLogprobs& from, proto::PositionLogprobs& to) {
  const auto& [chosen, top] = from;
  PutLogprob(chosen, to);
  for (const TokenLogprob& entry : top) PutLogprob(entry, to);
}

Status FromProto(const proto::PositionLogprobs& from, PositionLogprobs& out) {
  const int n = from.token_size();
  if (n < 1) return Missing("logprobs: token");
  MR_RETURN_IF_ERROR(CheckCount("logprobs", static_cast<size_t>(n),
                                static_cast<size_t>(kPositionLogprobsMax) + 1));
  if (from.logprob_size() != n || from.rank_size() != n) {
    return InvalidArgument(fmt::format("logprobs has {} tokens, {} values and {} ranks", n,
                                       from.logprob_size(), from.rank_size()));
  }
  out.top.resize(static_cast<size_t>(n) - 1);
  for (int i = 0; i < n; ++i) {
    TokenLogprob& entry = i == 0 ? out.chosen : out.top[static_cast<size_t>(i) - 1];
    MR_RETURN_IF_ERROR(Take("logprobs: token", from.token(i), entry.token));
    MR_RETURN_IF_ERROR(Take("logprobs: rank", from.rank(i), entry.rank));
    entry.logprob = from.logprob(i);
  }
  return OkStatus();
}

void ToProto(const StepResult& from, proto::StepResult& to) {
  const auto& [step, sequences, step_error] = from;
  to.set_id(step.value());
  to.mutable_sequences()->Reserve(static_cast<int>(sequences.size()));
  for (const auto& [id, token, logprobs, prompt_logprobs, pooled, error] : sequences) {
    proto::SequenceResult& entry = *to.add_sequences();
    entry.set_id(id.value());
    if (token) entry.set_token(static_cast<uint32_t>(*token));
    if (logprobs) ToProto(*logprobs, *entry.mutable_logprobs());
    for (const PositionLogprobs& position : prompt_logprobs) {
      ToProto(position, *entry.add_prompt_logprobs());
    }
    entry.mutable_pooled()->Add(pooled.begin(), pooled.end());
    if (!error.ok()) ToProto(error, *entry.mutable_error());
  }
  if (!step_error.ok()) ToProto(step_error, *to.mutable_error());
}

Status FromProto(const proto::StepResult& from, StepResult& out) {
  out.id = StepId(from.id());
  MR_RETURN_IF_ERROR(
      CheckCount("sequences", static_cast<size_t>(from.sequences_size()), kSequencesPerStepMax));
  out.sequences.resize(static_cast<size_t>(from.sequences_size()));
  for (int i = 0; i < from.sequences_size(); ++i) {
    if (Status wrong = TakeSequence(from.sequences(i), out.sequences[static_cast<size_t>(i)]);
        !wrong.ok()) {
      return wrong.WithContext(Element("sequences", i));
    }
  }
  if (from.has_error()) MR_RETURN_WITHIN("error", FromProto(from.error(), out.error));
  return OkStatus();
}

}  // namespace millrace::wire
