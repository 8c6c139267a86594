// What a request takes along to another scheduler: its tokens, and the KV that is certain to be in
// its blocks. Pure; any thread. Private to this folder.
#pragma once

#include <optional>
#include <vector>

#include "kv/kv_cache.h"
#include "sched/request.h"
#include "sched/scheduler.h"

namespace millrace::sched {

// The argument for another scheduler's Add.
NewRequest SnapshotOf(const Request& request);

// By sequence, leading tokens whose KV is in its device blocks after every plan sent so far has
// ended, successfully or not; empty if there are none. With `lacking`: includes KV that only some
// layers lack, and reports these layers.
std::vector<SequenceKv> CommittedKv(const Request& request, const kv::KvCache& cache,
                                    std::optional<LayerRange>* lacking);

}  // namespace millrace::sched
