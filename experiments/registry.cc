#include "experiments/experiment.h"
#include "experiments/list.h"

namespace millrace::experiments {

const std::vector<Experiment>& Experiments() {
  static const std::vector<Experiment> kAll = {
      DistserveOracleExperiment(), Md1Experiment(),         OrcaE2eExperiment(),
      SimSpeedExperiment(),        SpotGoldensExperiment(),
  };
  return kAll;
}

}  // namespace millrace::experiments
