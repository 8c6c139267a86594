// Mean, standard deviation and percentiles, computed as numpy does, so that results can be compared
// with those of other benchmark programs. Pure functions; any thread. An empty sample gives 0.
#pragma once

#include <span>
#include <vector>

namespace millrace {

double Mean(const std::vector<double>& sample);
double StdDev(const std::vector<double>& sample);  // of the population
// Linear interpolation between the closest ranks. REQUIRES: percent in [0, 100].
double Percentile(std::vector<double> sample, double percent);
double Median(std::vector<double> sample);
// Half the width of the 95 % confidence interval of the mean (Student's t); 0 for fewer than two.
double ConfidenceHalfWidth(std::span<const double> sample);

}  // namespace millrace
