// Sharding: which part of each layer a tensor-parallel rank holds (Megatron-LM, Shoeybi et al.
// 2019, section 3). Queries, keys and values are dealt out by head, the feed-forward part by
// column; what multiplies them back to hidden rows is cut along k, and its products are added over
// the ranks. Pure; any thread.
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

// Equal parts, in the order of ranks. Fewer units than ranks: neighbouring ranks hold the same one.
// REQUIRES: one of the two divides the other.
Share ShareOf(int units, TensorRank rank);

// kInvalidArgument, with the numbers and the degrees that would do, unless the heads, the KV heads
// and the feed-forward columns can be dealt out evenly.
Status CheckSharding(const ModelSpec& spec, TensorRank rank);

}  // namespace millrace::model
