// IdSource: the ids that a controller gives to workers, shards, pipelines, transfers and exports.
// They are unique over all controllers of a cluster, because each controller has its own term.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <cstdint>

#include "core/worker_messages.h"

namespace millrace::cluster {

class IdSource {
 public:
  explicit IdSource(Term term) : term_(term) {}

  uint64_t Next() { return (term_.value() << 40) | ++last_; }

 private:
  const Term term_;
  uint64_t last_ = 0;
};

}  // namespace millrace::cluster
