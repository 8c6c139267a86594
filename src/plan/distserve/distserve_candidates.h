// The candidates of the DistServe search and the goodput that their halves alone promise. Internal
// to plan; any thread.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "plan/distserve/distserve.h"
#include "plan/distserve/distserve_packing.h"

namespace millrace::plan {

// Goodput of one half alone, evaluated once per (parallelism, group size).
class HalfGoodputs {
 public:
  explicit HalfGoodputs(const DistServeEvaluator& evaluator) : evaluator_(evaluator) {}
  // What `count` instances promise together. Groups beyond kPoolMax gain nothing more.
  double Prefill(const Parallel& parallel, int count) { return Of(true, parallel, count); }
  double Decode(const Parallel& parallel, int count) { return Of(false, parallel, count); }

 private:
  double Of(bool prefill, const Parallel& parallel, int count);

  const DistServeEvaluator& evaluator_;
  std::map<std::tuple<bool, int, int, int>, double> known_;
};

struct Promise {
  DistServeUnit unit;
  int units_max = 1;     // the most that the cluster holds
  double per_unit = 0;   // requests/s that one unit promises in a full cluster
  bool network = false;  // the network bounds per_unit
};

// All candidates of the enabled modes.
std::vector<Promise> MakePromises(const DistServeProblem& problem, const DistServeOptions& options,
                                  HalfGoodputs& halves);

}  // namespace millrace::plan
