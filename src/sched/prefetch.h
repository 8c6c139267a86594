// Prefetches the memory of the requests that come next. With thousands of requests, none of it is
// in the cache when it is needed; if it is prefetched some places ahead, several misses overlap.
// Private to this folder.
#pragma once

#include "sched/request.h"

namespace millrace::sched {

inline constexpr size_t kPrefetchAhead = 6;

inline void PrefetchLines(const void* from, int lines) {
  for (int i = 0; i < lines; ++i) __builtin_prefetch(static_cast<const char*>(from) + i * 64);
}
// The fields that decide whether it can be in a step, then those that a decode step uses.
inline void PrefetchHead(const Request& request) { PrefetchLines(&request, 1); }
inline void Prefetch(const Request& request) {
  PrefetchLines(&request, 1);
  PrefetchLines(&request.times.last_token, 1);  // and spec's id beside it
}
inline void Prefetch(const Sequence& sequence) { PrefetchLines(&sequence, 2); }
// REQUIRES: both are already in the cache; otherwise this call misses.
inline void PrefetchTails(const Sequence& sequence, const Request& request) {
  __builtin_prefetch(sequence.output.data() + sequence.output.size());
  if (!request.ends_by_length_only) PrefetchLines(request.spec.params.get(), 3);
}

}  // namespace millrace::sched
