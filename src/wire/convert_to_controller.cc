#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "wire/checks.h"
#include "wire/convert.h"

namespace millrace::wire {
namespace {

// ---- to the wire

void Put(const Join& from, proto::ToController& to) {
  const auto& [name, token, identity, address, device, memory_bytes, held, machine, token_table] =
      from;
  proto::Join& out = *to.mutable_join();
  out.set_name(name);
  out.set_token(token);
  const auto& [protocol, model_fingerprint, numeric_class, kv_layout] = identity;
  proto::WorkerIdentity& id = *out.mutable_identity();
  id.set_protocol_version(static_cast<uint32_t>(protocol.newest));
  id.set_oldest_protocol_version(static_cast<uint32_t>(protocol.oldest));
  id.set_model_fingerprint(model_fingerprint);
  id.set_numeric_class(numeric_class);
  id.set_kv_layout(kv_layout);
  ToProto(address, *out.mutable_address());
  out.set_device(device);
  out.set_memory_bytes(static_cast<uint64_t>(memory_bytes));
  for (const auto& [layers, rank] : held) {
    proto::HeldShard& entry = *out.add_held();
    ToProto(layers, *entry.mutable_layers());
    ToProto(rank, *entry.mutable_rank());
  }
  out.set_token_table(token_table);
  const auto& [cores, zone, price_usd_per_hour, spot] = machine;
  proto::MachineFacts& facts = *out.mutable_machine();
  if (cores) facts.set_cores(static_cast<uint32_t>(*cores));
  facts.set_zone(zone);
  if (price_usd_per_hour) facts.set_price_usd_per_hour(*price_usd_per_hour);
  facts.set_spot(spot);
}

void Put(const ShardLoaded& from, proto::ToController& to) {
  const auto& [shard, status, weight_bytes, kv_bytes_per_token_layer, kv_bytes, kept_bytes,
               peer_bytes] = from;
  proto::ShardLoaded& out = *to.mutable_shard_loaded();
  out.set_shard(shard.value());
  ToProto(status, *out.mutable_status());
  out.set_weight_bytes(static_cast<uint64_t>(weight_bytes));
  out.set_kv_bytes_per_token_layer(static_cast<uint64_t>(kv_bytes_per_token_layer));
  out.set_kv_bytes(static_cast<uint64_t>(kv_bytes));
  out.set_kept_bytes(static_cast<uint64_t>(kept_bytes));
  out.set_peer_bytes(static_cast<uint64_t>(peer_bytes));
}

void Put(const ShardProgress& from, proto::ToController& to) {
  const auto& [shard, bytes_done, bytes_total] = from;
  proto::ShardProgress& out = *to.mutable_shard_progress();
  out.set_shard(shard.value());
  out.set_bytes_done(static_cast<uint64_t>(bytes_done));
  out.set_bytes_total(static_cast<uint64_t>(bytes_total));
}

void Put(const PipelineOpened& from, proto::ToController& to) {
  const auto& [pipeline, status] = from;
  proto::PipelineOpened& out = *to.mutable_pipeline_opened();
  out.set_pipeline(pipeline.value());
  ToProto(status, *out.mutable_status());
}

void Put(const StepDone& from, proto::ToController& to) {
  const auto& [pipeline, result] = from;
  proto::StepDone& out = *to.mutable_step_done();
  out.set_pipeline(pipeline.value());
  ToProto(result, *out.mutable_result());
}

void Put(const PipelineBroken& from, proto::ToController& to) {
  const auto& [pipeline, reason, suspect] = from;
  proto::PipelineBroken& out = *to.mutable_pipeline_broken();
  out.set_pipeline(pipeline.value());
  ToProto(reason, *out.mutable_reason());
  if (suspect) out.set_suspect(suspect->value());
}

void Put(const PullDone& from, proto::ToController& to) {
  const auto& [transfer, status, bytes, seconds, activations] = from;
  proto::PullDone& out = *to.mutable_pull_done();
  out.set_transfer(transfer.value());
  ToProto(status, *out.mutable_status());
  out.set_bytes(static_cast<uint64_t>(bytes));
  out.set_seconds(seconds);
  out.set_activations(activations);
}

template <typename Core, typename Proto>
void PutNotice(const Core& from, Proto& out) {
  const auto& [in, origin] = from;
  const auto& [source, kind] = origin;
  if (in) out.set_in_ns(static_cast<uint64_t>(in->ns));
  out.set_source(static_cast<uint32_t>(source));
  out.set_kind(static_cast<uint32_t>(kind));
}

void Put(const Leaving& from, proto::ToController& to) { PutNotice(from, *to.mutable_leaving()); }

void Put(const MayLeave& from, proto::ToController& to) {
  PutNotice(from, *to.mutable_may_leave());
}

void Put(const Staying&, proto::ToController& to) { to.mutable_staying(); }

void Put(const WorkerProfile& from, proto::ToController& to) {
  const auto& [text] = from;
  to.mutable_worker_profile()->set_text(text);
}

void Put(const LinkProbed& from, proto::ToController& to) {
  const auto& [probe, status, latency_s, bytes_per_s, bytes] = from;
  proto::LinkProbed& out = *to.mutable_link_probed();
  out.set_probe(probe.value());
  ToProto(status, *out.mutable_status());
  out.set_latency_s(latency_s);
  out.set_bytes_per_s(bytes_per_s);
  out.set_bytes(static_cast<uint64_t>(bytes));
}

// ---- from the wire

Status Read(const proto::MachineFacts& from, MachineFacts& out) {
  if (from.has_cores()) {
    MR_RETURN_IF_ERROR(Take("cores", from.cores(), out.cores.emplace(), 1, kCoresMax));
  }
  MR_RETURN_IF_ERROR(TakeText("zone", from.zone(), kNameBytesMax, out.zone));
  out.spot = from.spot();
  if (!from.has_price_usd_per_hour()) return OkStatus();
  const double price = from.price_usd_per_hour();
  if (!(price >= 0 && price <= kPriceUsdPerHourMax)) {
    return InvalidArgument(
        fmt::format("price_usd_per_hour must be in [0, {}], got {}", kPriceUsdPerHourMax, price));
  }
  out.price_usd_per_hour = price;
  return OkStatus();
}

Status Read(const proto::Join& from, Join& out) {
  MR_RETURN_IF_ERROR(TakeText("name", from.name(), kNameBytesMax, out.name));
  MR_RETURN_IF_ERROR(TakeText("token", from.token(), kTokenBytesMax, out.token));
  if (!from.has_identity()) return Missing("identity");
  const proto::WorkerIdentity& id = from.identity();
  WorkerIdentity& identity = out.identity;
  MR_RETURN_IF_ERROR(TakeProtocol(
      id.protocol_version(),
      id.has_oldest_protocol_version() ? std::optional(id.oldest_protocol_version()) : std::nullopt,
      identity.protocol));
  MR_RETURN_IF_ERROR(TakeText("model_fingerprint", id.model_fingerprint(), kNameBytesMax,
                              identity.model_fingerprint));
  MR_RETURN_IF_ERROR(
      TakeText("numeric_class", id.numeric_class(), kNameBytesMax, identity.numeric_class));
  MR_RETURN_IF_ERROR(TakeText("kv_layout", id.kv_layout(), kNameBytesMax, identity.kv_layout));
  if (!from.has_address()) return Missing("address");
  MR_RETURN_WITHIN("address", FromProto(from.address(), out.address));
  MR_RETURN_IF_ERROR(TakeText("device", from.device(), kNameBytesMax, out.device));
  MR_RETURN_IF_ERROR(Take("memory_bytes", from.memory_bytes(), out.memory_bytes));
  MR_RETURN_IF_ERROR(TakeText("token_table", from.token_table(), kNameBytesMax, out.token_table));
  MR_RETURN_IF_ERROR(CheckCount("held", static_cast<size_t>(from.held_size()), kHeldShardsMax));
  for (int i = 0; i < from.held_size(); ++i) {
    HeldShard& shard = out.held.emplace_back();
    MR_RETURN_WITHIN(Element("held", i), FromProto(from.held(i).layers(), shard.layers));
    MR_RETURN_WITHIN(Element("held", i), FromProto(from.held(i).rank(), shard.rank));
  }
  MR_RETURN_WITHIN("machine", Read(from.machine(), out.machine));
  return OkStatus();
}

Status Read(const proto::ShardLoaded& from, ShardLoaded& out) {
  out.shard = ShardId(from.shard());
  MR_RETURN_WITHIN("status", FromProto(from.status(), out.status));
  MR_RETURN_IF_ERROR(Take("weight_bytes", from.weight_bytes(), out.weight_bytes));
  MR_RETURN_IF_ERROR(Take("kv_bytes_per_token_layer", from.kv_bytes_per_token_layer(),
                          out.kv_bytes_per_token_layer));
  MR_RETURN_IF_ERROR(Take("kv_bytes", from.kv_bytes(), out.kv_bytes));
  MR_RETURN_IF_ERROR(Take("kept_bytes", from.kept_bytes(), out.kept_bytes));
  return Take("peer_bytes", from.peer_bytes(), out.peer_bytes);
}

Status Read(const proto::ShardProgress& from, ShardProgress& out) {
  out.shard = ShardId(from.shard());
  MR_RETURN_IF_ERROR(Take("bytes_done", from.bytes_done(), out.bytes_done));
  return Take("bytes_total", from.bytes_total(), out.bytes_total);
}

Status Read(const proto::PipelineOpened& from, PipelineOpened& out) {
  out.pipeline = PipelineId(from.pipeline());
  MR_RETURN_WITHIN("status", FromProto(from.status(), out.status));
  return OkStatus();
}

Status Read(const proto::StepDone& from, StepDone& out) {
  out.pipeline = PipelineId(from.pipeline());
  if (!from.has_result()) return Missing("result");
  MR_RETURN_WITHIN("result", FromProto(from.result(), out.result));
  return OkStatus();
}

Status Read(const proto::PipelineBroken& from, PipelineBroken& out) {
  out.pipeline = PipelineId(from.pipeline());
  MR_RETURN_WITHIN("reason", FromProto(from.reason(), out.reason));
  if (from.has_suspect()) out.suspect = WorkerId(from.suspect());
  return OkStatus();
}

Status Read(const proto::PullDone& from, PullDone& out) {
  out.transfer = TransferId(from.transfer());
  MR_RETURN_WITHIN("status", FromProto(from.status(), out.status));
  MR_RETURN_IF_ERROR(Take("bytes", from.bytes(), out.bytes));
  out.seconds = from.seconds();
  out.activations = from.activations();
  if (!std::isfinite(out.seconds) || out.seconds < 0) {
    return InvalidArgument("seconds must be finite and at least 0");
  }
  return OkStatus();
}

// A later version may have sources and kinds that this one does not know.
template <typename Core, typename Proto>
Status ReadNotice(const Proto& from, Core& out) {
  out.origin.source = static_cast<NoticeSource>(
      std::min(from.source(), static_cast<uint32_t>(NoticeSource::kUnknown)));
  out.origin.kind =
      static_cast<NoticeKind>(std::min(from.kind(), static_cast<uint32_t>(NoticeKind::kUnknown)));
  return from.has_in_ns() ? TakeDuration("in", from.in_ns(), out.in.emplace()) : OkStatus();
}

Status Read(const proto::WorkerProfile& from, WorkerProfile& out) {
  return TakeText("text", from.text(), kProfileTextBytesMax, out.text);
}

Status Read(const proto::LinkProbed& from, LinkProbed& out) {
  out.probe = ProbeId(from.probe());
  MR_RETURN_WITHIN("status", FromProto(from.status(), out.status));
  out.latency_s = from.latency_s();
  out.bytes_per_s = from.bytes_per_s();
  return Take("bytes", from.bytes(), out.bytes);
}

}  // namespace

void ToProto(const ToController& from, proto::ToController& to) {
  std::visit([&](const auto& message) { Put(message, to); }, from);
}

Status FromProto(const proto::ToController& from, ToController& out) {
  using P = proto::ToController;
  switch (from.message_case()) {
    case P::kJoin:
      MR_RETURN_WITHIN("join", Read(from.join(), out.emplace<Join>()));
      return OkStatus();
    case P::kShardLoaded:
      MR_RETURN_WITHIN("shard_loaded", Read(from.shard_loaded(), out.emplace<ShardLoaded>()));
      return OkStatus();
    case P::kShardProgress:
      MR_RETURN_WITHIN("shard_progress", Read(from.shard_progress(), out.emplace<ShardProgress>()));
      return OkStatus();
    case P::kPipelineOpened:
      MR_RETURN_WITHIN("pipeline_opened",
                       Read(from.pipeline_opened(), out.emplace<PipelineOpened>()));
      return OkStatus();
    case P::kStepDone:
      MR_RETURN_WITHIN("step_done", Read(from.step_done(), out.emplace<StepDone>()));
      return OkStatus();
    case P::kPipelineBroken:
      MR_RETURN_WITHIN("pipeline_broken",
                       Read(from.pipeline_broken(), out.emplace<PipelineBroken>()));
      return OkStatus();
    case P::kPullDone:
      MR_RETURN_WITHIN("pull_done", Read(from.pull_done(), out.emplace<PullDone>()));
      return OkStatus();
    case P::kLeaving:
      MR_RETURN_WITHIN("leaving", ReadNotice(from.leaving(), out.emplace<Leaving>()));
      return OkStatus();
    case P::kMayLeave:
      MR_RETURN_WITHIN("may_leave", ReadNotice(from.may_leave(), out.emplace<MayLeave>()));
      return OkStatus();
    case P::kStaying: out.emplace<Staying>(); return OkStatus();
    case P::kWorkerProfile:
      MR_RETURN_WITHIN("worker_profile", Read(from.worker_profile(), out.emplace<WorkerProfile>()));
      return OkStatus();
    case P::kLinkProbed:
      MR_RETURN_WITHIN("link_probed", Read(from.link_probed(), out.emplace<LinkProbed>()));
      return OkStatus();
    case P::MESSAGE_NOT_SET: break;
  }
  return Missing("message");
}

void ToProto(const Heartbeat& from, proto::Heartbeat& to) {
  const auto& [incarnation, sequence, steps_done, batch_age_ms, queued_steps, still_ms,
               waits_for_ranks] = from;
  to.set_incarnation(incarnation.value());
  to.set_sequence(sequence);
  to.set_steps_done(steps_done);
  to.set_batch_age_ms(static_cast<uint64_t>(batch_age_ms));
  to.set_queued_steps(static_cast<uint64_t>(queued_steps));
  to.set_still_ms(static_cast<uint64_t>(still_ms));
  to.set_waits_for_ranks(waits_for_ranks);
}

Status FromProto(const proto::Heartbeat& from, Heartbeat& out) {
  out.incarnation = Incarnation(from.incarnation());
  out.sequence = from.sequence();
  out.steps_done = from.steps_done();
  MR_RETURN_IF_ERROR(Take("batch_age_ms", from.batch_age_ms(), out.batch_age_ms));
  MR_RETURN_IF_ERROR(Take("queued_steps", from.queued_steps(), out.queued_steps));
  out.waits_for_ranks = from.waits_for_ranks();
  return Take("still_ms", from.still_ms(), out.still_ms);
}

void ToProto(const Echo& from, proto::Echo& to) {
  const auto& [bytes, answer_bytes] = from;
  to.mutable_content()->assign(bytes, '\0');
  to.set_answer_bytes(answer_bytes);
}

Status FromProto(const proto::Echo& from, Echo& out) {
  MR_RETURN_IF_ERROR(Take("content", from.content().size(), out.bytes, 0, kEchoBytesMax));
  return Take("answer_bytes", from.answer_bytes(), out.answer_bytes, 0, kEchoBytesMax);
}

}  // namespace millrace::wire
