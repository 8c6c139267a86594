// The files of --plot: SVG pictures of a simulation. Pure except for writing the files; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "sim/fast/service.h"
#include "sim/report/plots.h"
#include "sim/report/report.h"

namespace millrace::apps {

struct Pictures {
  std::vector<sim::SimReport> reports;  // one per rate, ascending
  sim::Timeline timeline;               // of the first rate and seed
  std::vector<sim::LoadSample> load;    // the same
};

// Writes latency_cdf.svg, timeline.svg, queue.svg and, with several rates, latency_rate.svg and
// attainment_rate.svg into `folder`, which it creates if needed. Returns the names written.
Result<std::vector<std::string>> WritePictures(const Pictures& pictures, const std::string& folder);

}  // namespace millrace::apps
