// The records of the request journal (accepted requests, their tokens, their ends), the state that
// results from them, and their encoding (docs/formats/journal.md). Pure; one thread at a time.
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
inline constexpr size_t kJournalTokensMax = 1u << 22;      // of a prompt, and of each record
inline constexpr size_t kJournalSnapshotTokensMax = 4096;  // of each record in a snapshot

// Log-probabilities by position. Two are equal if their encoded bytes are.
struct JournalLogprobs {
  std::vector<PositionLogprobs> positions;
  friend bool operator==(const JournalLogprobs&, const JournalLogprobs&);
};

struct JournalAccept {
  RequestId request;
  std::string external_id;
  std::vector<TokenId> prompt;
  SamplingParams params;  // with the drawn seed, if one was drawn
  int priority = 0;
  std::string cache_salt;
  int64_t arrived_unix_ms = 0;
  std::string front_end;           // the front end's own data; not interpreted here
  std::string client;              // as of sched::NewRequest
  std::optional<RequestId> joins;  // its output is part of this one's stream, which joins none
  friend bool operator==(const JournalAccept&, const JournalAccept&);
};
struct JournalTokens {
  RequestId request;
  int index = 0;          // which of the n continuations
  uint32_t position = 0;  // of the first token, within the continuation
  std::vector<TokenId> tokens;
  int cached_prompt_tokens = 0;              // of the request, as delivered with these tokens
  std::optional<std::string> finish_reason;  // set with the last tokens, in the same record
  JournalLogprobs logprobs;                  // one for each token, or none
  JournalLogprobs prompt_logprobs;           // of the request; only with its first tokens
  std::string fingerprint;                   // as of RequestOutput
  friend bool operator==(const JournalTokens&, const JournalTokens&) = default;
};
// The end of a continuation that comes without a token.
struct JournalFinished {
  RequestId request;
  int index = 0;
  std::string reason;
  friend bool operator==(const JournalFinished&, const JournalFinished&) = default;
};
// The last record of a snapshot: the number of records before it, and the first unused id.
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

// Tokens of one continuation that were delivered in a row, without other tokens of the stream.
struct JournalRun {
  int index = 0;
  uint32_t tokens = 0;
  uint64_t order = 0;       // among the runs of the stream
  std::string fingerprint;  // of its tokens, if that is not the one of the run before
  friend bool operator==(const JournalRun&, const JournalRun&) = default;
};

struct JournalRequest {
  JournalAccept accept;
  std::vector<JournalContinuation> continuations;  // n
  std::vector<JournalRun> runs;                    // in the order of delivery
  int cached_prompt_tokens = 0;
  JournalLogprobs prompt_logprobs;
  // For a request that others join:
  std::vector<RequestId> joined;  // in the order of their ids
  uint64_t stream_runs = 0;       // the number of runs in the whole stream
  RequestId last_delivered;
  bool finished() const;
  friend bool operator==(const JournalRequest&, const JournalRequest&) = default;
};

// The state that results from the records so far. A record that exceeds a limit or does not fit (an
// unknown request, a token at a wrong position, output after the end) is refused and changes
// nothing. Whatever was accepted once is accepted when it is read back.
class JournalState {
 public:
  Status Apply(const JournalRecord& record);
  // StreamOf: the request that `request` joins, or `request` itself. StreamFinished: whether that
  // one and all that join it have finished; they are forgotten together. REQUIRES: they are known.
  RequestId StreamOf(RequestId request) const;
  bool StreamFinished(RequestId stream) const;
  void ForgetStream(RequestId stream);

  const std::map<RequestId, JournalRequest>& requests() const { return requests_; }
  RequestId next_request() const { return next_request_; }  // greater than every accepted id
  // Records that result in exactly this state; the last is JournalSnapshotEnd.
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
// kDataLoss: the bytes are not a record. JournalState checks what it says.
Result<JournalRecord> DecodeJournalRecord(std::string_view bytes);

}  // namespace millrace::cluster
