// KeptPlan: keeps the plan that an operator applied last in the cluster's store, so that the next
// controller uses the same layout. The plan is valid while the model and the layout of the command
// line are those that it replaced. If it is given up before it comes into force, the plan before it
// is stored again. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "ops/cluster/leading.h"
#include "plan/io/plan_yaml.h"

namespace millrace::ops {

class KeptPlan {
 public:
  // `layout`: that of the command line, as text.
  KeptPlan(std::shared_ptr<Leading> leading, std::string model_fingerprint, std::string layout);

  // nullopt: there is no valid plan.
  Result<std::optional<WorkerPlan>> Read();
  // `text`: as its sender wrote it. kInvalidArgument: too long for the store.
  Status Write(const std::string& text, int64_t epoch);
  // The plan of that epoch is in force, or was given up. Ignored unless it was the last one
  // written.
  Status Settle(int64_t epoch, bool in_force);

 private:
  Status Keep(const std::string& text) const;

  const std::shared_ptr<Leading> leading_;
  const std::string model_fingerprint_, layout_;
  Mutex mutex_;
  std::string in_force_ MR_GUARDED_BY(mutex_);  // empty: the command line's
  std::optional<std::pair<int64_t, std::string>> written_ MR_GUARDED_BY(mutex_);  // not settled yet
};

}  // namespace millrace::ops
