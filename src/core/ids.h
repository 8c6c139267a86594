// The names of things, each its own type. Values; any thread.
#pragma once

#include <cstdint>

#include "base/strong_id.h"

namespace millrace {

using TokenId =
    int32_t;  // an index into the vocabulary: arithmetic on it is the rule, not the exception

// What a client sent: one prompt, n >= 1 sequences. Unique in a process for ever.
using RequestId = StrongId<struct RequestIdTag>;
// One of the n continuations of a request. Unique in a process for ever.
using SequenceId = StrongId<struct SequenceIdTag>;
// One iteration of the model for one batch; grows by one.
using StepId = StrongId<struct StepIdTag>;
// The place of a KV block in a pool, in [0, num_blocks). Which use of that place is meant is
// kv's affair (a handle there carries a generation); executors obey plain indices.
using BlockIndex = int32_t;

}  // namespace millrace
