#include "experiments/experiment.h"
#include "experiments/list.h"

namespace millrace::experiments {

const std::vector<Experiment>& Experiments() {
  // clang-format off: one to a line
  static const std::vector<Experiment> kAll = {
      Md1Experiment(),
      DistserveOracleExperiment(),
      DistserveSearchExperiment(),
      DistserveAttainmentExperiment(),
      OrcaE2eExperiment(),
      OrcaMemoryExperiment(),
      VllmBatchingExperiment(),
      SpotGoldensExperiment(),
      SpotTracesExperiment(),
      SimSpeedExperiment(),
      SplitwiseHoldoutExperiment(),
      HelixContestExperiment(),
      HelixMaxflowExperiment(),
      VidurRooflineExperiment(),
      HelixTablesExperiment(),
      HelixRoutedExperiment(),
      HelixPlansExperiment(),
      AutopilotShiftExperiment(),
      AutopilotScaleExperiment(),
  };
  // clang-format on
  return kAll;
}

}  // namespace millrace::experiments
