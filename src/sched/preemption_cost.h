// What it costs to preempt a request, by recompute and by swap (vLLM section 4.5). Functions of the
// request and of measured rates. Private to this folder.
#pragma once

#include "kv/kv_cache.h"
#include "sched/request.h"
#include "sched/scheduler.h"

namespace millrace::sched {

// Blocks that the request's started sequences hold, each once: on the host if it is swapped out.
int DistinctBlocks(const Request& request, kv::KvCache& kv);

// Both costs and the mode that is chosen. Recompute replays the prompt once and every output; swap
// moves every distinct block out and back.
PreemptionRecord Weigh(const Request& victim, kv::KvCache& kv, PreemptionMode mode,
                       const PreemptionCosts& costs);

}  // namespace millrace::sched
