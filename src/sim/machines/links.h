// Links: transfers over the network of a cluster and their arrival times. A link, the network cards
// at its ends and its trunk each carry their bytes in sending order. A message arrives one latency
// after the slowest of them has carried it. One thread.
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
  Duration longest_wait;  // of a message for earlier messages
};

// The links between nodes that the cluster does not name: all nodes reach each other.
struct OtherLinks {
  double bytes_per_s = 0;
  Duration latency;
};

class Links {
 public:
  explicit Links(const ClusterSpec& cluster, std::optional<OtherLinks> others = {});

  bool Connected(int from, int to) const {
    return from == to || index_.contains(Key(from, to)) ||
           (others_ && from != coordinator_ && to != coordinator_);
  }
  // The arrival time of `bytes` sent now; immediate within a node. REQUIRES: Connected(from, to).
  Time Send(int from, int to, double bytes, Time now);
  // REQUIRES: Connected(from, to).
  Duration Latency(int from, int to) const;
  // How long the network card of a node has sent; zero without a card.
  Duration Sending(int node) const;
  // The links that carried data.
  std::vector<LinkUse> Used() const;

 private:
  // A resource that carries bytes one after another.
  struct Line {
    double bytes_per_s = 0;
    Time free;
    Duration busy;
    Time Carry(double bytes, Time now);
  };
  struct Link {
    Line line;
    Duration latency;
    std::optional<int> trunk;
    LinkUse use;
  };
  static int64_t Key(int from, int to) { return int64_t{from} << 32 | to; }
  Link& At(int from, int to);

  const std::optional<OtherLinks> others_;
  const int coordinator_;
  std::unordered_map<int64_t, int> index_;
  std::vector<Link> links_;
  std::vector<Line> trunks_;
  std::vector<std::optional<Line>> cards_out_, cards_in_;  // by node
};

}  // namespace millrace::sim
