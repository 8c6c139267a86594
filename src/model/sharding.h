// Sharding: which part of each layer a tensor-parallel rank holds (Megatron-LM, Shoeybi et al.
// 2019, section 3). Queries, keys and values are split by head, the feed-forward part by column.
// The products that return to hidden rows are cut along k and added over the ranks. Pure; any
// thread.
#pragma once

#include "base/status.h"
#include "core/model_spec.h"
#include "core/worker_messages.h"

namespace millrace::model {

// Units [first, end) of a layer: heads, columns.
struct Share {
  int first = 0, end = 0;
  int size() const { return end - first; }
};

// Equal parts, in rank order. With fewer units than ranks, neighbouring ranks hold the same one.
// REQUIRES: one of the two divides the other.
Share ShareOf(int units, TensorRank rank);

// kInvalidArgument, with the numbers and the possible degrees, unless the heads, the KV heads and
// the feed-forward columns can be split evenly.
Status CheckSharding(const ModelSpec& spec, TensorRank rank);

}  // namespace millrace::model
