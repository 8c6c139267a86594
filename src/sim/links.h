// Links: what crosses the network of a cluster, and when it is there. A link, the network cards at
// its ends and the trunk it shares each carry their bytes in the order they were sent; a message
// has arrived when the slowest of them has passed it on, and the latency after that. One thread.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/cluster_spec.h"

namespace millrace::sim {

struct LinkUse {
  int from = 0, to = 0;  // nodes, or ClusterSpec::coordinator()
  double bytes = 0;
  Duration busy;
  Duration longest_wait;  // of a message for what was sent before it
};

class Links {
 public:
  explicit Links(const ClusterSpec& cluster);

  bool Connected(int from, int to) const { return from == to || index_.contains(Key(from, to)); }
  // When `bytes` sent now are there; at once within a node. REQUIRES: Connected(from, to).
  Time Send(int from, int to, double bytes, Time now);
  // Links that carried anything.
  std::vector<LinkUse> Used() const;

 private:
  // Something that passes bytes on one after the other.
  struct Line {
    double bytes_per_s = 0;
    Time free;
    Time Carry(double bytes, Time now);
  };
  struct Link {
    Line line;
    Duration latency;
    std::optional<int> trunk;
    LinkUse use;
  };
  static int64_t Key(int from, int to) { return int64_t{from} << 32 | to; }

  std::unordered_map<int64_t, int> index_;
  std::vector<Link> links_;
  std::vector<Line> trunks_;
  std::vector<std::optional<Line>> cards_out_, cards_in_;  // by node
};

}  // namespace millrace::sim
