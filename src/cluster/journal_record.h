// The records of the request journal: what was accepted, which tokens it has, how it ended; the
// state that they add up to; and their bytes (docs/formats/journal.md). Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "core/ids.h"
#include "core/sampling_params.h"
#include "core/step_plan.h"

namespace millrace::cluster {

inline constexpr size_t kJournalRecordBytesMax = 64u << 20;
inline constexpr size_t kJournalTextBytesMax = 64u << 10;  // of each text in a record
inline constexpr size_t kJournalSnapshotTokensMax = 4096;  // of each record in a snapshot

// Log-probabilities by position. They are equal when their bytes are.
struct JournalLogprobs {
  std::vector<PositionLogprobs> positions;
  friend bool operator==(const JournalLogprobs&, const JournalLogprobs&);
};

struct JournalAccept {
  RequestId request;
  std::string external_id;
  std::vector<TokenId> prompt;
  SamplingParams params;  // with the seed that was drawn, if one was
  int priority = 0;
  std::string cache_salt;
  int64_t arrived_unix_ms = 0;
  std::string front_end;           // whatever the front end wants to find again; not looked into
  std::optional<RequestId> joins;  // whose stream its output is part of; that one joins none itself
  friend bool operator==(const JournalAccept&, const JournalAccept&);
};
struct JournalTokens {
  RequestId request;
  int index = 0;          // which of the n continuations
  uint32_t position = 0;  // of the first token; the continuation's first has 0
  std::vector<TokenId> tokens;
  int cached_prompt_tokens = 0;              // of the request, as it was told with them
  std::optional<std::string> finish_reason;  // they are its last, and why: one record or none
  JournalLogprobs logprobs;                  // one for each token, or none
  JournalLogprobs prompt_logprobs;           // of the request; with its first tokens, or none
  friend bool operator==(const JournalTokens&, const JournalTokens&) = default;
};
// An end without a token.
struct JournalFinished {
  RequestId request;
  int index = 0;
  std::string reason;
  friend bool operator==(const JournalFinished&, const JournalFinished&) = default;
};
// The last record of a snapshot: how many came before it, and the first id not used so far.
struct JournalSnapshotEnd {
  uint64_t records = 0;
  RequestId next_request;
  friend bool operator==(const JournalSnapshotEnd&, const JournalSnapshotEnd&) = default;
};
using JournalRecord =
    std::variant<JournalAccept, JournalTokens, JournalFinished, JournalSnapshotEnd>;

struct JournalContinuation {
  std::vector<TokenId> tokens;
  JournalLogprobs logprobs;  // one for each token, or none
  std::optional<std::string> finish_reason;
  friend bool operator==(const JournalContinuation&, const JournalContinuation&) = default;
};

// Tokens of one continuation that no other's of its stream came between.
struct JournalRun {
  int index = 0;
  uint32_t tokens = 0;
  uint64_t order = 0;  // among the runs of the stream
  friend bool operator==(const JournalRun&, const JournalRun&) = default;
};

struct JournalRequest {
  JournalAccept accept;
  std::vector<JournalContinuation> continuations;  // n
  std::vector<JournalRun> runs;                    // in which order their tokens were told
  int cached_prompt_tokens = 0;
  JournalLogprobs prompt_logprobs;
  // Of the one that others join.
  std::vector<RequestId> joined;  // in the order of their ids
  uint64_t stream_runs = 0;       // of all of them
  RequestId last_delivered;
  bool finished() const;
  friend bool operator==(const JournalRequest&, const JournalRequest&) = default;
};

// What the records so far add up to. A record that does not fit (an unknown request, a token out of
// its place, output after the end) is refused and changes nothing.
class JournalState {
 public:
  Status Apply(const JournalRecord& record);
  // The request that `request` joins, or itself; it is there. And whether that one and all that
  // join it have finished: only together they may be forgotten.
  RequestId StreamOf(RequestId request) const;
  bool StreamFinished(RequestId stream) const;
  void ForgetStream(RequestId stream);

  const std::map<RequestId, JournalRequest>& requests() const { return requests_; }
  RequestId next_request() const { return next_request_; }  // greater than any that was accepted
  // The records that add up to this very state, JournalSnapshotEnd last.
  std::vector<JournalRecord> Snapshot() const;
  friend bool operator==(const JournalState&, const JournalState&) = default;

 private:
  Status ApplyOne(const JournalAccept& record);
  Status ApplyOne(const JournalTokens& record);
  Status ApplyOne(const JournalFinished& record);
  Status ApplyOne(const JournalSnapshotEnd& record);
  Result<JournalContinuation*> Unfinished(RequestId request, int index);
  void CountRun(const JournalTokens& record);
  std::vector<const JournalRequest*> Members(const JournalRequest& stream) const;
  void SnapshotStream(const JournalRequest& stream, std::vector<JournalRecord>& records) const;

  std::map<RequestId, JournalRequest> requests_;
  RequestId next_request_{1};
};

std::string EncodeJournalRecord(const JournalRecord& record);
// kDataLoss for bytes that no record has.
Result<JournalRecord> DecodeJournalRecord(std::string_view bytes);

}  // namespace millrace::cluster
