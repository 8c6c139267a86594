#include "wire/checks.h"
#include "wire/convert.h"

namespace millrace::wire {
namespace {

void Put(const PipelineStep& from, proto::PeerMessage& to) {
  ToProto(from, *to.mutable_pipeline_step());
}

void Put(const BatchOrder& from, proto::PeerMessage& to) {
  const auto& [shard, parts] = from;
  proto::BatchOrder& out = *to.mutable_batch_order();
  out.set_shard(shard.value());
  for (const auto& [pipeline, step] : parts) {
    proto::BatchPart& entry = *out.add_parts();
    entry.set_pipeline(pipeline.value());
    entry.set_step(step.value());
  }
}

Status Read(const proto::BatchOrder& from, BatchOrder& out) {
  out.shard = ShardId(from.shard());
  MR_RETURN_IF_ERROR(CheckCount("parts", static_cast<size_t>(from.parts_size()), kBatchPartsMax));
  out.parts.reserve(static_cast<size_t>(from.parts_size()));
  for (const proto::BatchPart& part : from.parts()) {
    out.parts.push_back({PipelineId(part.pipeline()), StepId(part.step())});
  }
  return OkStatus();
}

}  // namespace

void ToProto(const PeerMessage& from, proto::PeerMessage& to) {
  std::visit([&](const auto& message) { Put(message, to); }, from);
}

Status FromProto(const proto::PeerMessage& from, PeerMessage& out) {
  switch (from.message_case()) {
    case proto::PeerMessage::kPipelineStep:
      MR_RETURN_WITHIN("pipeline_step",
                       FromProto(from.pipeline_step(), out.emplace<PipelineStep>()));
      return OkStatus();
    case proto::PeerMessage::kBatchOrder:
      MR_RETURN_WITHIN("batch_order", Read(from.batch_order(), out.emplace<BatchOrder>()));
      return OkStatus();
    case proto::PeerMessage::MESSAGE_NOT_SET: break;
  }
  return Missing("message");
}

}  // namespace millrace::wire
