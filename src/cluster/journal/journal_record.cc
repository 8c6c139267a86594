#include "cluster/journal/journal_record.h"

#include <fmt/format.h>
#include <google/protobuf/arena.h>

#include "cluster/journal/journal.pb.h"
#include "wire/checks.h"
#include "wire/shared_parts.h"

namespace millrace::cluster {
namespace {

using LogprobFields = google::protobuf::RepeatedPtrField<proto::PositionLogprobs>;

void PutLogprobs(const JournalLogprobs& from, LogprobFields& to) {
  for (const PositionLogprobs& position : from.positions) wire::ToProto(position, *to.Add());
}

Status TakeLogprobs(const LogprobFields& from, JournalLogprobs& out) {
  out.positions.resize(static_cast<size_t>(from.size()));
  for (int i = 0; i < from.size(); ++i) {
    MR_RETURN_IF_ERROR(wire::FromProto(from[i], out.positions[static_cast<size_t>(i)]));
  }
  return OkStatus();
}

void PutRecord(const JournalAccept& from, proto::JournalRecord& record) {
  const auto& [request, external_id, prompt, params, priority, cache_salt, arrived_unix_ms,
               front_end, client, joins] = from;
  proto::JournalAccept& to = *record.mutable_accept();
  to.Clear();
  to.set_request(request.value());
  to.set_external_id(external_id);
  to.mutable_prompt()->Add(prompt.begin(), prompt.end());
  wire::ToProto(params, *to.mutable_params());
  to.set_priority(priority);
  to.set_cache_salt(cache_salt);
  to.set_arrived_unix_ms(arrived_unix_ms);
  to.set_front_end(front_end);
  to.set_client(client);
  if (joins) to.set_joins(joins->value());
}

Status TakeRecord(const proto::JournalAccept& from, JournalAccept& out) {
  out.request = RequestId(from.request());
  out.external_id = from.external_id();
  out.prompt.assign(from.prompt().begin(), from.prompt().end());
  MR_RETURN_WITHIN("params", wire::FromProto(from.params(), out.params));
  out.priority = from.priority();
  out.cache_salt = from.cache_salt();
  out.arrived_unix_ms = from.arrived_unix_ms();
  out.front_end = from.front_end();
  out.client = from.client();
  if (from.has_joins()) out.joins = RequestId(from.joins());
  return OkStatus();
}

void PutRecord(const JournalTokens& from, proto::JournalRecord& record) {
  const auto& [request, index, position, tokens, cached_prompt_tokens, finish_reason, logprobs,
               prompt_logprobs, fingerprint] = from;
  proto::JournalTokens& to = *record.mutable_tokens();
  to.Clear();
  to.set_request(request.value());
  to.set_index(index);
  to.set_position(position);
  to.mutable_tokens()->Add(tokens.begin(), tokens.end());
  to.set_cached_prompt_tokens(cached_prompt_tokens);
  if (finish_reason) to.set_finish_reason(*finish_reason);
  PutLogprobs(logprobs, *to.mutable_logprobs());
  PutLogprobs(prompt_logprobs, *to.mutable_prompt_logprobs());
  to.set_fingerprint(fingerprint);
}

Status TakeRecord(const proto::JournalTokens& from, JournalTokens& out) {
  out.request = RequestId(from.request());
  out.index = from.index();
  out.position = from.position();
  out.tokens.assign(from.tokens().begin(), from.tokens().end());
  out.cached_prompt_tokens = from.cached_prompt_tokens();
  if (from.has_finish_reason()) out.finish_reason = from.finish_reason();
  MR_RETURN_IF_ERROR(TakeLogprobs(from.logprobs(), out.logprobs));
  MR_RETURN_WITHIN("prompt", TakeLogprobs(from.prompt_logprobs(), out.prompt_logprobs));
  out.fingerprint = from.fingerprint();
  return OkStatus();
}

void PutRecord(const JournalFinished& from, proto::JournalRecord& record) {
  const auto& [request, index, reason] = from;
  proto::JournalFinished& to = *record.mutable_finished();
  to.Clear();
  to.set_request(request.value());
  to.set_index(index);
  to.set_reason(reason);
}

Status TakeRecord(const proto::JournalFinished& from, JournalFinished& out) {
  out = {RequestId(from.request()), from.index(), from.reason()};
  return OkStatus();
}

void PutRecord(const JournalSnapshotEnd& from, proto::JournalRecord& record) {
  const auto& [records, next_request] = from;
  proto::JournalSnapshotEnd& to = *record.mutable_snapshot_end();
  to.Clear();
  to.set_records(records);
  to.set_next_request(next_request.value());
}

Status TakeRecord(const proto::JournalSnapshotEnd& from, JournalSnapshotEnd& out) {
  out = {from.records(), RequestId(from.next_request())};
  return OkStatus();
}

Status TakeAny(const proto::JournalRecord& from, JournalRecord& out) {
  switch (from.record_case()) {
    case proto::JournalRecord::kAccept:
      return TakeRecord(from.accept(), out.emplace<JournalAccept>());
    case proto::JournalRecord::kTokens:
      return TakeRecord(from.tokens(), out.emplace<JournalTokens>());
    case proto::JournalRecord::kFinished:
      return TakeRecord(from.finished(), out.emplace<JournalFinished>());
    case proto::JournalRecord::kSnapshotEnd:
      return TakeRecord(from.snapshot_end(), out.emplace<JournalSnapshotEnd>());
    case proto::JournalRecord::RECORD_NOT_SET: break;
  }
  return DataLoss("unknown kind of record");
}

}  // namespace

// Both compare encoded bytes, so that NaN equals itself.
bool operator==(const JournalAccept& a, const JournalAccept& b) {
  return EncodeJournalRecord(a) == EncodeJournalRecord(b);
}

bool operator==(const JournalLogprobs& a, const JournalLogprobs& b) {
  return EncodeJournalRecord(JournalTokens{.logprobs = a}) ==
         EncodeJournalRecord(JournalTokens{.logprobs = b});
}

std::string EncodeJournalRecord(const JournalRecord& record) {
  // A record of the same kind as the one before uses its memory again: most are tokens.
  thread_local proto::JournalRecord message;
  std::visit([](const auto& one) { PutRecord(one, message); }, record);
  return message.SerializeAsString();
}

Result<JournalRecord> DecodeJournalRecord(std::string_view bytes) {
  if (bytes.size() > kJournalRecordBytesMax) {
    return DataLoss(fmt::format("the record has {} bytes, the limit is {}", bytes.size(),
                                kJournalRecordBytesMax));
  }
  google::protobuf::Arena arena;
  auto& message = *google::protobuf::Arena::CreateMessage<proto::JournalRecord>(&arena);
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return DataLoss("the bytes are not a record");
  }
  JournalRecord record;
  const Status taken = TakeAny(message, record);
  if (!taken.ok()) return DataLoss(taken.message());
  return record;
}

}  // namespace millrace::cluster
