#include <fmt/format.h>

#include <algorithm>

#include "cluster/journal_record.h"

namespace millrace::cluster {

bool JournalRequest::finished() const {
  return std::all_of(continuations.begin(), continuations.end(),
                     [](const JournalContinuation& c) { return c.finish_reason.has_value(); });
}

Status JournalState::Apply(const JournalRecord& record) {
  return std::visit([this](const auto& one) { return ApplyOne(one); }, record);
}

Status JournalState::ApplyOne(const JournalAccept& record) {
  if (record.request < next_request_) {
    return DataLoss(fmt::format("request {} was accepted before", record.request.value()));
  }
  if (record.params.n < 1 || record.params.n > kSequencesPerRequestMax) {
    return DataLoss(fmt::format("request {} has n = {}", record.request.value(), record.params.n));
  }
  if (record.request.value() == UINT64_MAX) return DataLoss("there is no such request id");
  JournalRequest& request = requests_[record.request];
  request.accept = record;
  request.continuations.resize(static_cast<size_t>(record.params.n));
  next_request_ = RequestId(record.request.value() + 1);
  return OkStatus();
}

Result<JournalContinuation*> JournalState::Unfinished(RequestId id, int index) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) {
    return DataLoss(fmt::format("request {} was not accepted", id.value()));
  }
  auto& continuations = found->second.continuations;
  if (index < 0 || static_cast<size_t>(index) >= continuations.size()) {
    return DataLoss(fmt::format("request {} has no continuation {}", id.value(), index));
  }
  JournalContinuation& continuation = continuations[static_cast<size_t>(index)];
  if (continuation.finish_reason) {
    return DataLoss(fmt::format("continuation {} of request {} has ended", index, id.value()));
  }
  return &continuation;
}

Status JournalState::ApplyOne(const JournalTokens& record) {
  MR_ASSIGN_OR_RETURN(JournalContinuation * continuation, Unfinished(record.request, record.index));
  JournalRequest& request = requests_.at(record.request);
  if (record.tokens.empty()) return DataLoss("a record of no tokens");
  if (record.position != continuation->tokens.size()) {
    return DataLoss(fmt::format("tokens at position {} of request {}, which has {}",
                                record.position, record.request.value(),
                                continuation->tokens.size()));
  }
  continuation->tokens.insert(continuation->tokens.end(), record.tokens.begin(),
                              record.tokens.end());
  continuation->finish_reason = record.finish_reason;
  request.cached_prompt_tokens =
      std::max(request.cached_prompt_tokens, record.cached_prompt_tokens);
  if (request.runs.empty() || request.runs.back().index != record.index) {
    request.runs.push_back({.index = record.index});
  }
  request.runs.back().tokens += static_cast<uint32_t>(record.tokens.size());
  return OkStatus();
}

Status JournalState::ApplyOne(const JournalFinished& record) {
  MR_ASSIGN_OR_RETURN(JournalContinuation * continuation, Unfinished(record.request, record.index));
  continuation->finish_reason = record.reason;
  return OkStatus();
}

Status JournalState::ApplyOne(const JournalSnapshotEnd& record) {
  next_request_ = std::max(next_request_, record.next_request);
  return OkStatus();
}

std::vector<JournalRecord> JournalState::Snapshot() const {
  std::vector<JournalRecord> records;
  for (const auto& [id, request] : requests_) {
    records.push_back(request.accept);
    std::vector<uint32_t> told(request.continuations.size());
    for (const JournalRun& run : request.runs) {
      uint32_t& position = told[static_cast<size_t>(run.index)];
      const auto begin =
          request.continuations[static_cast<size_t>(run.index)].tokens.begin() + position;
      records.push_back(JournalTokens{
          id, run.index, position, {begin, begin + run.tokens}, request.cached_prompt_tokens});
      position += run.tokens;
    }
    for (size_t i = 0; i < request.continuations.size(); ++i) {
      const auto& reason = request.continuations[i].finish_reason;
      if (!reason) continue;
      records.emplace_back(std::in_place_type<JournalFinished>,
                           JournalFinished{id, static_cast<int>(i), *reason});
    }
  }
  records.push_back(JournalSnapshotEnd{records.size(), next_request_});
  return records;
}

}  // namespace millrace::cluster
