// The ids of requests, sequences, steps and blocks, each its own type. Values; any thread.
#pragma once

#include <cstdint>

#include "base/strong_id.h"

namespace millrace {

using TokenId = int32_t;  // an index into the vocabulary; arithmetic on it is common

// What a client sent: one prompt, n >= 1 sequences. Never reused within a process.
using RequestId = StrongId<struct RequestIdTag>;
// One of the n continuations of a request. Never reused within a process.
using SequenceId = StrongId<struct SequenceIdTag>;
// One iteration of the model for one batch; grows by one.
using StepId = StrongId<struct StepIdTag>;
// The index of a KV block in a pool, in [0, num_blocks). An index can be reused; kv's handles add a
// generation to tell the uses apart. Executors need only the index.
using BlockIndex = int32_t;

}  // namespace millrace
