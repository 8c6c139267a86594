// Conversions of the structs that the messages of control.proto share with the other formats of
// cluster: the journal and the requests of pulls. As in convert.h, ToProto does not compile without
// every field, and FromProto checks everything and leaves `out` partially filled on an error. Pure
// functions; any thread.
#pragma once

#include "base/status.h"
#include "core/sampling_params.h"
#include "core/step_plan.h"
#include "core/worker_messages.h"
#include "wire/control.pb.h"

namespace millrace::wire {

// convert_common.cc
void ToProto(const KvHandle& from, proto::KvHandle& to);
Status FromProto(const proto::KvHandle& from, KvHandle& out);

// convert_sampling.cc. Token ids are not compared with a vocabulary.
void ToProto(const SamplingParams& from, proto::SamplingParams& to);
Status FromProto(const proto::SamplingParams& from, SamplingParams& out);

// convert_step_result.cc
void ToProto(const PositionLogprobs& from, proto::PositionLogprobs& to);
Status FromProto(const proto::PositionLogprobs& from, PositionLogprobs& out);

}  // namespace millrace::wire
