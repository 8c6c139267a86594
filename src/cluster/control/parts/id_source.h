// IdSource: the ids that a controller gives to workers, shards, pipelines, transfers and exports.
// They are unique over all controllers of a cluster, because each controller has its own term.
// Terms of different stores may be equal: a server's first id is random.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <cstdint>

#include "core/worker_messages.h"

namespace millrace::cluster {

class IdSource {
 public:
  static constexpr int kIdBits = 40;

  // REQUIRES: `last` < 2^(kIdBits - 1).
  explicit IdSource(Term term, uint64_t last = 0) : term_(term), last_(last) {}

  uint64_t Next() { return (term_.value() << kIdBits) | ++last_; }

 private:
  const Term term_;
  uint64_t last_;
};

}  // namespace millrace::cluster
