// Conversions between core's structs and the generated messages, one pair of functions per struct.
// Private to wire. ToProto takes structs apart by structured bindings: a field that is added in
// core and not here does not compile (for SamplingParams, ForEachField and a test ensure that).
// FromProto checks everything and leaves `out` partially filled on an error. Pure functions; any
// thread.
#pragma once

#include <optional>

#include "base/status.h"
#include "core/worker_messages.h"
#include "wire/codec.h"
#include "wire/control.pb.h"
#include "wire/shared_parts.h"

namespace millrace::wire {

// convert_common.cc
void ToProto(const Status& from, proto::Status& to);
void ToProto(const LayerRange& from, proto::LayerRange& to);
void ToProto(const TensorRank& from, proto::TensorRank& to);
void ToProto(const WorkerAddress& from, proto::WorkerAddress& to);
void ToProto(const Envelope& from, proto::Envelope& to);
// An absent `oldest` is `newest`.
Status TakeProtocol(uint32_t newest, std::optional<uint32_t> oldest, ProtocolRange& out);
Status FromProto(const proto::Status& from, Status& out);
Status FromProto(const proto::LayerRange& from, LayerRange& out);
Status FromProto(const proto::TensorRank& from, TensorRank& out);
Status FromProto(const proto::WorkerAddress& from, WorkerAddress& out);
Status FromProto(const proto::Envelope& from, Envelope& out);

// convert_step_plan.cc
void ToProto(const PipelineStep& from, proto::PipelineStep& to);
Status FromProto(const proto::PipelineStep& from, PipelineStep& out);

// convert_step_result.cc
void ToProto(const StepResult& from, proto::StepResult& to);
Status FromProto(const proto::StepResult& from, StepResult& out);

// convert_to_controller.cc
void ToProto(const ToController& from, proto::ToController& to);
void ToProto(const Heartbeat& from, proto::Heartbeat& to);
void ToProto(const Echo& from, proto::Echo& to);
Status FromProto(const proto::ToController& from, ToController& out);
Status FromProto(const proto::Heartbeat& from, Heartbeat& out);
Status FromProto(const proto::Echo& from, Echo& out);

// convert_to_worker.cc
void ToProto(const ToWorker& from, proto::ToWorker& to);
Status FromProto(const proto::ToWorker& from, ToWorker& out);

// convert_peer.cc
void ToProto(const PeerMessage& from, proto::PeerMessage& to);
Status FromProto(const proto::PeerMessage& from, PeerMessage& out);

}  // namespace millrace::wire
