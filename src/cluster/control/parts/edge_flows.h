// EdgeFlows: what has flowed between workers since the controller's start, by edge and phase, to
// compare with the plan. An edge is named by its workers, so its counts go on when the plan changes
// and when a worker comes back.
//
// Pipelines pass along edges. Their schedulers count tokens and requests anyway, so a token costs
// nothing here: what a pipeline carried is added when it closes, and the caller adds what the open
// ones have carried so far. KV that is handed over is added when its pull has ended.
//
// Owned by Pipelines. Pure; one thread at a time.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/plan.h"

namespace millrace::cluster {

class EdgeFlows {
 public:
  // Beyond this number, edges without an open pipeline are forgotten. If there are none, further
  // edges are counted together, from and to kOther.
  static constexpr size_t kEdgesMax = 1024;
  static constexpr const char* kCoordinator = "coordinator";
  static constexpr const char* kOther = "other";

  struct Key {
    std::string from, to;  // a worker's name, kCoordinator or kOther
    EdgePhase phase = EdgePhase::kBoth;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Flow {
    // Of prompts and answers (kBoth), of prompts (kPrefill, kHandOver), or of answers (kDecode).
    int64_t tokens = 0;
    int64_t requests = 0;
    // kHandOver: the KV, and how long its pulls took.
    int64_t bytes = 0;
    double seconds = 0;
    Flow& operator+=(const Flow& other);
  };
  using Table = std::map<Key, Flow>;

  explicit EdgeFlows(size_t edges_max = kEdgesMax) : edges_max_(edges_max) {}

  // A pipeline through these workers was opened. Returns where it is counted: one key for each edge
  // from the coordinator through the workers and back.
  std::vector<Key> Opened(StageRole role, const std::vector<std::string>& workers);
  // It closes, and has carried this much along each of them.
  void Closed(const std::vector<Key>& edges, const Flow& flow);
  // This has flowed along an edge that needs no pipeline.
  void Add(const Key& edge, const Flow& flow) { EntryOf(edge).second.flow += flow; }

  // What was added so far; every edge of an open pipeline is in it.
  Table Added() const;

 private:
  struct Entry {
    Flow flow;
    int pipelines = 0;  // open ones
  };
  using Entries = std::map<Key, Entry>;
  Entries::value_type& EntryOf(const Key& edge);

  const size_t edges_max_;
  Entries entries_;
};

}  // namespace millrace::cluster
