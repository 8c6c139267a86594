#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cluster/journal/journal_record.h"

namespace millrace::cluster {
namespace {

Status CheckText(const char* what, const std::string& text) {
  if (text.size() <= kJournalTextBytesMax) return OkStatus();
  return DataLoss(
      fmt::format("{} has {} bytes, the limit is {}", what, text.size(), kJournalTextBytesMax));
}

Status CheckTokens(const std::vector<TokenId>& tokens) {
  if (tokens.size() > kJournalTokensMax) {
    return DataLoss(
        fmt::format("{} tokens in one record, the limit is {}", tokens.size(), kJournalTokensMax));
  }
  const auto wrong = std::find_if(tokens.begin(), tokens.end(), [](TokenId t) { return t < 0; });
  if (wrong == tokens.end()) return OkStatus();
  return DataLoss(fmt::format("the token id {} is negative", *wrong));
}

Status CheckLogprobs(const JournalLogprobs& logprobs) {
  const auto wrong = [](const TokenLogprob& entry) { return entry.token < 0 || entry.rank < 0; };
  for (const auto& [chosen, top] : logprobs.positions) {
    if (top.size() > static_cast<size_t>(kPositionLogprobsMax)) {
      return DataLoss(fmt::format("{} log-probabilities at one position, the limit is {}",
                                  top.size(), kPositionLogprobsMax));
    }
    if (wrong(chosen) || std::any_of(top.begin(), top.end(), wrong)) {
      return DataLoss("a log-probability with a negative token id or rank");
    }
  }
  return OkStatus();
}

Status CheckLimits(const JournalAccept& accept) {
  if (Status wrong = Validate(accept.params, std::numeric_limits<TokenId>::max()); !wrong.ok()) {
    return DataLoss(fmt::format("request {}: {}", accept.request.value(), wrong.message()));
  }
  MR_RETURN_IF_ERROR(CheckTokens(accept.prompt));
  MR_RETURN_IF_ERROR(CheckText("the external id", accept.external_id));
  MR_RETURN_IF_ERROR(CheckText("the cache salt", accept.cache_salt));
  MR_RETURN_IF_ERROR(CheckText("the client", accept.client));
  return CheckText("the front end's text", accept.front_end);
}

}  // namespace

bool JournalRequest::finished() const {
  return std::all_of(continuations.begin(), continuations.end(),
                     [](const JournalContinuation& c) { return c.finish_reason.has_value(); });
}

Status JournalState::Apply(const JournalRecord& record) {
  return std::visit([this](const auto& one) { return ApplyOne(one); }, record);
}

Status JournalState::ApplyOne(const JournalAccept& record) {
  if (record.request < next_request_) {
    return DataLoss(
        fmt::format("request id {} is not greater than the ids before it", record.request.value()));
  }
  MR_RETURN_IF_ERROR(CheckLimits(record));
  if (record.request.value() == UINT64_MAX) return DataLoss("invalid request id");
  if (record.joins) {
    const auto stream = requests_.find(*record.joins);
    if (stream == requests_.end() || stream->second.accept.joins) {
      return DataLoss(fmt::format("cannot join the stream of request {}", record.joins->value()));
    }
    stream->second.joined.push_back(record.request);
  }
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
  if (record.tokens.empty()) return DataLoss("a token record without tokens");
  MR_RETURN_IF_ERROR(CheckTokens(record.tokens));
  MR_RETURN_IF_ERROR(CheckLogprobs(record.logprobs));
  MR_RETURN_IF_ERROR(CheckLogprobs(record.prompt_logprobs));
  if (record.finish_reason) MR_RETURN_IF_ERROR(CheckText("the reason", *record.finish_reason));
  MR_RETURN_IF_ERROR(CheckText("the fingerprint", record.fingerprint));
  if (record.position != continuation->tokens.size()) {
    return DataLoss(fmt::format("tokens at position {} of request {}, which has {} tokens",
                                record.position, record.request.value(),
                                continuation->tokens.size()));
  }
  const auto& logprobs = record.logprobs.positions;
  auto& known = continuation->logprobs.positions;
  if (!logprobs.empty() &&
      (logprobs.size() != record.tokens.size() || known.size() != continuation->tokens.size())) {
    return DataLoss("only some of the tokens have log-probabilities");
  }
  known.insert(known.end(), logprobs.begin(), logprobs.end());
  continuation->tokens.insert(continuation->tokens.end(), record.tokens.begin(),
                              record.tokens.end());
  continuation->finish_reason = record.finish_reason;
  request.cached_prompt_tokens =
      std::max(request.cached_prompt_tokens, record.cached_prompt_tokens);
  if (request.prompt_logprobs.positions.empty()) request.prompt_logprobs = record.prompt_logprobs;
  CountRun(record);
  return OkStatus();
}

void JournalState::CountRun(const JournalTokens& record) {
  JournalRequest& request = requests_.at(record.request);
  JournalRequest& stream = requests_.at(StreamOf(record.request));
  if (request.runs.empty() || request.runs.back().index != record.index ||
      stream.last_delivered != record.request || !record.fingerprint.empty()) {
    request.runs.push_back(
        {.index = record.index, .order = stream.stream_runs++, .fingerprint = record.fingerprint});
    stream.last_delivered = record.request;
  }
  request.runs.back().tokens += static_cast<uint32_t>(record.tokens.size());
}

RequestId JournalState::StreamOf(RequestId request) const {
  return requests_.at(request).accept.joins.value_or(request);
}

std::vector<const JournalRequest*> JournalState::Members(const JournalRequest& stream) const {
  std::vector<const JournalRequest*> members = {&stream};
  for (const RequestId id : stream.joined) members.push_back(&requests_.at(id));
  return members;
}

bool JournalState::StreamFinished(RequestId stream) const {
  const auto members = Members(requests_.at(stream));
  return std::all_of(members.begin(), members.end(),
                     [](const JournalRequest* request) { return request->finished(); });
}

void JournalState::ForgetStream(RequestId stream) {
  const auto found = requests_.find(stream);
  if (found == requests_.end()) return;
  for (const RequestId id : found->second.joined) requests_.erase(id);
  requests_.erase(found);
}

Status JournalState::ApplyOne(const JournalFinished& record) {
  MR_RETURN_IF_ERROR(CheckText("the reason", record.reason));
  MR_ASSIGN_OR_RETURN(JournalContinuation * continuation, Unfinished(record.request, record.index));
  continuation->finish_reason = record.reason;
  return OkStatus();
}

Status JournalState::ApplyOne(const JournalSnapshotEnd& record) {
  next_request_ = std::max(next_request_, record.next_request);
  return OkStatus();
}

// A stream's tokens follow the last request that joins it.
std::vector<JournalRecord> JournalState::Snapshot() const {
  std::vector<JournalRecord> records;
  for (const auto& [id, request] : requests_) {
    records.push_back(request.accept);
    const JournalRequest& stream = requests_.at(StreamOf(id));
    const RequestId last = stream.joined.empty() ? stream.accept.request : stream.joined.back();
    if (id == last) SnapshotStream(stream, records);
  }
  records.push_back(JournalSnapshotEnd{records.size(), next_request_});
  return records;
}

namespace {

// A run, its request, and the position of its first token.
struct PlacedRun {
  const JournalRequest* request;
  const JournalRun* run;
  uint32_t position;
};

void SnapshotRun(const PlacedRun& placed, std::vector<JournalRecord>& records) {
  const JournalRequest& request = *placed.request;
  const JournalContinuation& delivered =
      request.continuations[static_cast<size_t>(placed.run->index)];
  const uint32_t end = placed.position + placed.run->tokens;
  for (uint32_t begin = placed.position; begin < end;) {
    const auto next = std::min<uint32_t>(end, begin + uint32_t{kJournalSnapshotTokensMax});
    JournalTokens tokens{request.accept.request, placed.run->index, begin};
    tokens.tokens.assign(delivered.tokens.begin() + begin, delivered.tokens.begin() + next);
    tokens.cached_prompt_tokens = request.cached_prompt_tokens;
    if (const auto& known = delivered.logprobs.positions; !known.empty()) {
      tokens.logprobs.positions.assign(known.begin() + begin, known.begin() + next);
    }
    const bool first = placed.run == &request.runs.front() && begin == placed.position;
    if (first) tokens.prompt_logprobs = request.prompt_logprobs;
    if (begin == placed.position) tokens.fingerprint = placed.run->fingerprint;
    records.emplace_back(std::move(tokens));
    begin = next;
  }
}

}  // namespace

void JournalState::SnapshotStream(const JournalRequest& stream,
                                  std::vector<JournalRecord>& records) const {
  std::vector<PlacedRun> placed;
  const auto members = Members(stream);
  for (const JournalRequest* request : members) {
    std::vector<uint32_t> delivered(request->continuations.size());
    for (const JournalRun& run : request->runs) {
      uint32_t& position = delivered[static_cast<size_t>(run.index)];
      placed.push_back({request, &run, position});
      position += run.tokens;
    }
  }
  std::sort(placed.begin(), placed.end(),
            [](const PlacedRun& a, const PlacedRun& b) { return a.run->order < b.run->order; });
  for (const PlacedRun& run : placed) SnapshotRun(run, records);
  for (const JournalRequest* request : members) {
    for (size_t i = 0; i < request->continuations.size(); ++i) {
      const auto& reason = request->continuations[i].finish_reason;
      if (!reason) continue;
      records.emplace_back(std::in_place_type<JournalFinished>,
                           JournalFinished{request->accept.request, static_cast<int>(i), *reason});
    }
  }
}

}  // namespace millrace::cluster
