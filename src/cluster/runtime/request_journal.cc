#include "cluster/runtime/request_journal.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/log.h"

namespace millrace::cluster {
namespace {

int64_t UnixMillis() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             system_clock::now().time_since_epoch())
      .count();
}

std::optional<FinishReason> ReasonNamed(const std::string& name) {
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort, FinishReason::kError}) {
    if (FinishReasonName(reason) == name) return reason;
  }
  return std::nullopt;
}

// Rebuilds the outputs that the client received: one for each run of tokens, with the finish reason
// in the last one of a continuation. In the controller only a token can stop a sequence, so the
// stop token is the last token.
void TakeDelivered(RequestId id, const JournalRequest& request, RecoveredRequest& earlier) {
  std::vector<RequestOutput>& delivered = earlier.delivered;
  std::vector<uint32_t> positions(request.continuations.size());
  const auto end = [&](RequestOutput& output, const JournalContinuation& continuation) {
    output.finish = ReasonNamed(*continuation.finish_reason).value_or(FinishReason::kError);
    if (output.finish == FinishReason::kStop && !continuation.tokens.empty()) {
      output.stop_token = continuation.tokens.back();
    }
  };
  for (const JournalRun& run : request.runs) {
    const JournalContinuation& continuation = request.continuations[static_cast<size_t>(run.index)];
    uint32_t& position = positions[static_cast<size_t>(run.index)];
    RequestOutput& output = delivered.emplace_back();
    output.request = id;
    output.index = run.index;
    output.fingerprint = run.fingerprint;
    for (uint32_t i = 0; i < run.tokens; ++i) {
      if (const auto& logprobs = continuation.logprobs.positions; !logprobs.empty()) {
        output.logprobs.push_back(logprobs[position]);
      }
      output.tokens.push_back(continuation.tokens[position++]);
    }
    if (delivered.size() == 1) output.prompt_logprobs = request.prompt_logprobs.positions;
    earlier.delivered_order.push_back(run.order);
    output.cached_prompt_tokens = request.cached_prompt_tokens;
    if (continuation.finish_reason && position == continuation.tokens.size()) {
      end(output, continuation);
    }
  }
  for (size_t i = 0; i < request.continuations.size(); ++i) {
    const JournalContinuation& continuation = request.continuations[i];
    if (!continuation.finish_reason || !continuation.tokens.empty()) continue;
    RequestOutput& output = delivered.emplace_back();
    output.request = id;
    output.index = static_cast<int>(i);
    end(output, continuation);
    earlier.delivered_order.push_back(std::numeric_limits<uint64_t>::max());
  }
}

RequestJournal::Resumable ToResume(const RecoveredRequest& earlier, const JournalRequest& request) {
  RequestJournal::Resumable result;
  sched::NewRequest& resumable = result.request;
  resumable.id = earlier.id;
  resumable.prompt = std::make_shared<const std::vector<TokenId>>(earlier.prompt);
  resumable.params = std::make_shared<const SamplingParams>(earlier.params);
  resumable.seed = earlier.params.seed.value_or(0);
  resumable.priority = earlier.priority;
  resumable.cache_salt = earlier.cache_salt;
  resumable.client = earlier.client;
  resumable.times = RequestTimes{.arrived = earlier.arrived};
  if (earlier.delivered.empty()) return result;
  for (const JournalRun& run : request.runs) {
    if (!run.fingerprint.empty()) result.computed_by = run.fingerprint;
  }
  for (const JournalContinuation& continuation : request.continuations) {
    resumable.resumed.push_back({continuation.tokens, continuation.finish_reason.has_value()});
  }
  // The journal records that the request had begun, but not when.
  resumable.times->first_scheduled = resumable.times->first_token = earlier.arrived;
  resumable.cached_prompt_tokens = request.cached_prompt_tokens;
  return result;
}

class ControllerRecovery : public RecoveredRequests {
 public:
  ControllerRecovery(ControllerHost& host, RequestJournal& journal)
      : host_(host), journal_(journal) {}

  std::vector<RecoveredRequest> Take() override { return journal_.TakeRecovered(); }
  Status Resume(RequestId request, OutputSink sink) override {
    auto resumable = journal_.TakeResumable(request);
    if (!resumable) {
      return NotFound("this request cannot be resumed: it is unknown or has finished");
    }
    Status resumed =
        host_.Resume(std::move(resumable->request), resumable->computed_by, std::move(sink));
    if (!resumed.ok()) journal_.End(request);
    return resumed;
  }
  void Drop(RequestId request) override { journal_.End(request); }

 private:
  ControllerHost& host_;
  RequestJournal& journal_;
};

}  // namespace

Result<std::unique_ptr<RequestJournal>> RequestJournal::Open(const JournalOptions& options,
                                                             const Clock& clock) {
  JournalReplay replay;
  MR_ASSIGN_OR_RETURN(auto opened, Journal::Open(options, clock, replay));
  std::unique_ptr<RequestJournal> journal(new RequestJournal(std::move(opened), clock));
  journal->first_request_ = replay.state.next_request().value();
  journal->Take(replay.state);
  return journal;
}

void RequestJournal::Take(const JournalState& state) {
  const Time now = clock_.Now();
  const int64_t unix_ms = UnixMillis();
  MutexLock lock(mutex_);
  for (const auto& [id, request] : state.requests()) {
    RecoveredRequest& earlier = earlier_.emplace_back();
    earlier.id = id;
    earlier.external_id = request.accept.external_id;
    earlier.front_end = request.accept.front_end;
    earlier.prompt = request.accept.prompt;
    earlier.params = request.accept.params;
    earlier.priority = request.accept.priority;
    earlier.cache_salt = request.accept.cache_salt;
    earlier.client = request.accept.client;
    earlier.joins = request.accept.joins;
    // The wall clock may have been set back in the meantime.
    const int64_t arrived_unix_ms = std::clamp<int64_t>(request.accept.arrived_unix_ms, 0, unix_ms);
    earlier.arrived = now + Duration::Millis(arrived_unix_ms - unix_ms);
    TakeDelivered(id, request, earlier);
    earlier.finished = request.finished();
    if (earlier.finished) continue;
    Live& live = live_[id];
    live.logprobs = !earlier.front_end.empty();
    for (const JournalContinuation& continuation : request.continuations) {
      live.positions.push_back(static_cast<uint32_t>(continuation.tokens.size()));
      live.open += !continuation.finish_reason;
    }
    resumable_.emplace(id, ToResume(earlier, request));
  }
}

ControllerJournal RequestJournal::Hooks() {
  ControllerJournal hooks;
  hooks.accepted = [this](const auto& request, const auto& asked) {
    return Accepted(request, asked);
  };
  hooks.delivered = [this](const auto& output) { return Delivered(output); };
  hooks.check = [this] { return Note(journal_->Probe()); };
  return hooks;
}

std::vector<RecoveredRequest> RequestJournal::TakeRecovered() {
  MutexLock lock(mutex_);
  return std::exchange(earlier_, {});
}

std::optional<RequestJournal::Resumable> RequestJournal::TakeResumable(RequestId request) {
  MutexLock lock(mutex_);
  auto found = resumable_.extract(request);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

Status RequestJournal::Accepted(const sched::NewRequest& request, const GenerationRequest& asked) {
  JournalAccept accept;
  accept.request = request.id;
  accept.external_id = asked.external_id;
  accept.prompt = *request.prompt;
  accept.params = *request.params;
  accept.params.seed = request.seed;
  accept.priority = request.priority;
  accept.cache_salt = request.cache_salt;
  accept.client = request.client;
  accept.arrived_unix_ms = UnixMillis();
  accept.front_end = asked.front_end;
  accept.joins = asked.joins;
  const bool logprobs = !asked.front_end.empty();
  const int n = request.params->n;
  const Status kept = journal_->Append(std::move(accept));
  MutexLock lock(mutex_);
  if (!kept.ok()) {
    AddPendingEnd(request.id, n);
    lock.unlock();
    return Note(kept);
  }
  live_[request.id] = {std::vector<uint32_t>(static_cast<size_t>(n)), n, logprobs};
  FlushPendingEnds();
  return OkStatus();
}

// Writes all outputs with one write.
Status RequestJournal::Delivered(const std::vector<RequestOutput>& outputs) {
  records_.clear();
  std::map<RequestId, int> ended;  // requests that these outputs end, with their continuations
  {
    MutexLock lock(mutex_);
    for (const RequestOutput& output : outputs) {
      if (auto record = RecordOf(output)) records_.push_back(std::move(*record));
      const auto found = live_.find(output.request);
      if (found == live_.end() || found->second.open > 0) continue;
      ended[output.request] = static_cast<int>(found->second.positions.size());
      live_.erase(found);
    }
  }
  if (records_.empty()) return OkStatus();
  const Status kept = journal_->Append(records_);
  MutexLock lock(mutex_);
  if (kept.ok()) {
    FlushPendingEnds();
    return OkStatus();
  }
  for (const auto& [id, n] : ended) AddPendingEnd(id, n);
  for (const RequestOutput& output : outputs) {
    const auto found = live_.find(output.request);
    if (found == live_.end()) continue;
    AddPendingEnd(output.request, static_cast<int>(found->second.positions.size()));
    live_.erase(found);
  }
  lock.unlock();
  return Note(kept);
}

// Clients get no path of this machine.
Status RequestJournal::Note(const Status& written) {
  const bool works = written.ok() || written.code() == StatusCode::kInvalidArgument;
  if (const bool worked = works_.exchange(works); works != worked) {
    if (works) {
      MR_LOG(info, "the journal can be written again");
    } else {
      MR_LOG(error, "the journal cannot be written, so that requests fail until it can: {}",
             written.message());
    }
  }
  if (works) return written;
  if (journal_->lost()) {
    return Unavailable("this server is no longer the leader, or its journal is gone: ask again");
  }
  return Unavailable(
      "the server's journal cannot be written now, and no request runs without it; the server's "
      "log "
      "has the cause");
}

// nullopt: the output has nothing to record, or its request is no longer recorded.
std::optional<JournalRecord> RequestJournal::RecordOf(const RequestOutput& output) {
  const auto found = live_.find(output.request);
  if (found == live_.end()) return std::nullopt;
  Live& live = found->second;
  if (output.finish) --live.open;
  if (output.tokens.empty()) {
    if (!output.finish) return std::nullopt;
    return JournalFinished{output.request, output.index,
                           std::string(FinishReasonName(*output.finish))};
  }
  uint32_t& position = live.positions[static_cast<size_t>(output.index)];
  JournalTokens tokens{
      output.request,    output.index, position, {}, output.cached_prompt_tokens, {}, {}, {},
      output.fingerprint};
  tokens.tokens.assign(output.tokens.begin(), output.tokens.end());
  if (output.finish) tokens.finish_reason = FinishReasonName(*output.finish);
  if (live.logprobs) {
    tokens.logprobs.positions = output.logprobs;
    tokens.prompt_logprobs.positions = output.prompt_logprobs;
  }
  position += static_cast<uint32_t>(output.tokens.size());
  return tokens;
}

void RequestJournal::End(RequestId request) {
  MutexLock lock(mutex_);
  resumable_.erase(request);
  const auto found = live_.find(request);
  if (found == live_.end()) return;
  AddPendingEnd(request, static_cast<int>(found->second.positions.size()));
  live_.erase(found);
  FlushPendingEnds();
}

void RequestJournal::AddPendingEnd(RequestId request, int n) {
  if (journal_->Holds(request)) pending_ends_.emplace_back(request, n);
}

// A continuation that has an end already refuses a second one.
void RequestJournal::FlushPendingEnds() {
  std::erase_if(pending_ends_, [this](const std::pair<RequestId, int>& end) {
    for (int i = 0; i < end.second; ++i) {
      const Status kept = journal_->Append(
          JournalFinished{end.first, i, std::string(FinishReasonName(FinishReason::kAbort))});
      if (kept.code() == StatusCode::kUnavailable) return false;
    }
    return true;
  });
}

std::unique_ptr<RecoveredRequests> NewControllerRecovery(ControllerHost& host,
                                                         RequestJournal& journal) {
  return std::make_unique<ControllerRecovery>(host, journal);
}

}  // namespace millrace::cluster
