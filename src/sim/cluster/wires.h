// Wires: when messages between a controller and its workers arrive. Steps, results, activations and
// KV take their bytes over the links of the cluster; other messages take the link's latency alone.
// A connection keeps its order. Owned by ClusterSim. One thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "core/cluster_spec.h"
#include "sim/machines/links.h"

namespace millrace::sim {

// From one worker to another of the same node.
struct InsideNode {
  double latency_s = 0;
  double bytes_per_s = 0;  // 0: bytes take no time
};

class Wires {
 public:
  // `node_of`: by place, the node of the cluster that the worker there is on.
  Wires(Links links, const ClusterSpec& cluster, std::vector<int> node_of, InsideNode inside)
      : links_(std::move(links)),
        home_(cluster.coordinator()),
        node_of_(std::move(node_of)),
        inside_(inside),
        last_down_(node_of_.size(), kLongAgo),
        last_up_(node_of_.size(), kLongAgo) {}

  // Between the controller and the worker at `place`. A step leaves `delay` later.
  Time Down(int place, double bytes, Duration delay, Time now);
  Time Up(int place, double bytes, Time now);
  // Between workers; nullopt: no link leads there.
  std::optional<Time> Across(int from, int to, double bytes, Time now);

  const Links& links() const { return links_; }

 private:
  static constexpr Time kLongAgo{std::numeric_limits<int64_t>::min()};

  Time Control(int from, int to, double bytes, Time now);

  Links links_;
  const int home_;
  const std::vector<int> node_of_;
  const InsideNode inside_;
  std::vector<Time> last_down_, last_up_;  // arrival of the last message, by place
};

}  // namespace millrace::sim
