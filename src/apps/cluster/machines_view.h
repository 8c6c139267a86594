// MachinesView: the answer of GET /cluster/machines as a struct, and as a cluster file for the
// planner (docs/formats/cluster.md). Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "core/cluster_spec.h"

namespace millrace::apps {

// What the controller is called as an end of a link, in answers and in cluster files.
inline constexpr std::string_view kControllerEnd = "coordinator";

struct MachineView {
  std::string name, device, zone, numeric_class;
  int64_t memory_bytes = 0;
  std::optional<int64_t> cores;
  std::optional<double> price_usd_per_hour;
  bool spot = false;
  std::string profile;  // one line; empty: none
};
struct LinkView {        // one direction
  std::string from, to;  // workers, or kControllerEnd
  double latency_s = 0, bytes_per_s = 0, age_s = 0;
};
struct MachinesView {
  std::string model;
  std::vector<MachineView> machines;
  std::vector<LinkView> links;  // those that were measured
  ServerSizes server;
};

// A field that is missing or has another type is empty.
MachinesView ReadMachinesView(const Json& answer);
// The `links` of an answer, without those whose numbers no link has.
std::vector<LinkView> ReadLinks(const Json& answer);

// What was not measured yet: "no profile of a, b; 2 of 6 links between workers not measured".
// Empty: each machine has a profile, and each link between two of them and between the controller
// and one of them was measured, as far as the controller measures links.
std::string Lacking(const MachinesView& view);

// The nodes are the workers, under their names. Links that were not measured get the median of
// those that were, and a comment that says so. kFailedPrecondition: no worker has joined.
Result<std::string> FormatClusterFile(const MachinesView& view);

}  // namespace millrace::apps
