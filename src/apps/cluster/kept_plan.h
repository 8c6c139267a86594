// KeptPlan: the plan that an operator applied last, in the cluster's store, so that the next
// controller lays out the same. It counts while the model and the layout of the command line are
// those it took the place of. Any thread.
#pragma once

#include <optional>
#include <string>

#include "apps/cluster/leading.h"
#include "base/status.h"
#include "plan/io/plan_yaml.h"

namespace millrace::apps {

class KeptPlan {
 public:
  // `leading` outlives it. `layout`: what the command line said.
  KeptPlan(Leading& leading, std::string model_fingerprint, std::string layout);

  // nullopt: none that counts.
  Result<std::optional<plan::WorkerPlan>> Read() const;
  // `text`: as the operator sent it. kInvalidArgument: too long for a store.
  Status Write(const std::string& text) const;

 private:
  Leading& leading_;
  const std::string model_fingerprint_, layout_;
};

}  // namespace millrace::apps
