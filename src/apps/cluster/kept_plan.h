// KeptPlan: the plan that an operator applied last, in the cluster's store, so that the next
// controller lays out the same. It counts while the model and the layout of the command line are
// those it took the place of. Where it is given up before it comes into force, the one before it is
// kept again. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "apps/cluster/leading.h"
#include "base/mutex.h"
#include "base/status.h"
#include "plan/io/plan_yaml.h"

namespace millrace::apps {

class KeptPlan {
 public:
  // `leading` outlives it. `layout`: what the command line said.
  KeptPlan(Leading& leading, std::string model_fingerprint, std::string layout);

  // nullopt: none that counts.
  Result<std::optional<plan::WorkerPlan>> Read();
  // `text`: as the operator sent it. kInvalidArgument: too long for a store.
  Status Write(const std::string& text, int64_t epoch);
  // The plan of that epoch is in force, or given up; of others than the one written last: nothing.
  Status Settle(int64_t epoch, bool in_force);

 private:
  Status Keep(const std::string& text) const;

  Leading& leading_;
  const std::string model_fingerprint_, layout_;
  Mutex mutex_;
  std::string in_force_ MR_GUARDED_BY(mutex_);  // empty: that of the command line
  std::optional<std::pair<int64_t, std::string>> written_ MR_GUARDED_BY(mutex_);  // not settled yet
};

}  // namespace millrace::apps
