// Every experiment, each defined in the file with its name. Called by main; one thread.
#pragma once

#include "experiments/experiment.h"

namespace millrace::experiments {

Experiment AutopilotScaleExperiment();
Experiment AutopilotShiftExperiment();
Experiment DistserveAttainmentExperiment();
Experiment DistserveOracleExperiment();
Experiment DistserveSearchExperiment();
Experiment HelixContestExperiment();
Experiment HelixMaxflowExperiment();
Experiment HelixPlansExperiment();
Experiment HelixTablesExperiment();
Experiment HelixRoutedExperiment();
Experiment Md1Experiment();
Experiment OrcaE2eExperiment();
Experiment OrcaMemoryExperiment();
Experiment SimSpeedExperiment();
Experiment SplitwiseHoldoutExperiment();
Experiment SpotGoldensExperiment();
Experiment SpotTracesExperiment();
Experiment VllmBatchingExperiment();
Experiment VidurRooflineExperiment();

}  // namespace millrace::experiments
