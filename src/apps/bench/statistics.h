// Mean, spread and percentiles, computed as numpy does, so that numbers can be set beside those of
// other benchmark programs. Pure functions; an empty sample gives 0.
#pragma once

#include <vector>

namespace millrace::apps {

double Mean(const std::vector<double>& sample);
double StdDev(const std::vector<double>& sample);  // of the population
// Linear interpolation between the closest ranks. REQUIRES: percent in [0, 100].
double Percentile(std::vector<double> sample, double percent);
double Median(std::vector<double> sample);

}  // namespace millrace::apps
