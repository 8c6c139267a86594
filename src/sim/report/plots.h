// Pictures of a simulation as SVG: curves with axes, and a timeline of the steps of each instance.
// Also writes the steps for Chrome's and Perfetto's trace viewers. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/fast/instance.h"
#include "sim/load/quantiles.h"

namespace millrace::sim {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending, finite
};

struct ChartOptions {
  std::string title, x_label, y_label;
  bool log_x = false;                                      // REQUIRES: every x above zero
  std::optional<double> y_max;                             // none: the greatest y
  std::vector<std::pair<std::string, double>> vertical;    // marked x
  std::vector<std::pair<std::string, double>> horizontal;  // marked y
  bool dots = false;
};
std::string LineChart(const ChartOptions& options, const std::vector<Series>& series);

// The share of values up to x, with x in milliseconds; the values are seconds.
Series CdfOf(std::string name, const Quantiles& seconds);

// One step of one instance, kept for pictures.
struct TimelineStep {
  int instance = 0;
  StepRecord record;
};

// Collects steps up to a limit; further steps are only counted. One thread.
class Timeline {
 public:
  explicit Timeline(size_t steps_max) : steps_max_(steps_max) {}
  void Add(int instance, const StepRecord& record) {
    if (steps_.size() < steps_max_) {
      steps_.push_back({instance, record});
    } else {
      ++left_out_;
    }
  }
  // Names of the rows if they are not stages of equal instances: "stage 3 on l4-0".
  void SetNames(std::vector<std::string> names) { names_ = std::move(names); }
  // "instance 0", or its given name.
  std::string NameOf(int instance) const;
  const std::vector<TimelineStep>& steps() const { return steps_; }
  uint64_t left_out() const { return left_out_; }

 private:
  size_t steps_max_;
  std::vector<TimelineStep> steps_;
  std::vector<std::string> names_;  // by instance; may be empty
  uint64_t left_out_ = 0;
};

// A row per stage and a box per step from begin to end. The colour shows the share of prompt
// tokens, the number the tokens; white is a bubble. Shows `seconds` from `from_s` on.
std::string TimelineSvg(const Timeline& timeline, double from_s, double seconds);

// Chrome's trace event format, which Perfetto also reads: instances as processes, stages as
// threads.
std::string ChromeTrace(const Timeline& timeline);

}  // namespace millrace::sim
