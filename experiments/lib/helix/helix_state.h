// HelixState: queries, node queues and links of an imitated Helix run, as its schedulers see them.
// Owned by HelixSimulator; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "experiments/lib/helix/helix_cluster.h"
#include "experiments/lib/helix/helix_model.h"

namespace millrace::experiments::helix {

using HelixQueryIndex = int32_t;  // an index of HelixState::queries, reused after the query is done

// One stop of a query's route: the link taken and the layers that run at its end (none at the
// coordinator).
struct HelixHop {
  int link = 0;
  LayerRange layers;
};

// A request: a prompt iteration, then one iteration per output token, one at a time, all on the
// prompt's route.
struct HelixQuery {
  int input_tokens = 0, output_tokens = 0;
  int decoded = 0;  // finished iterations after the prompt
  bool decoding = false;
  std::vector<HelixHop> route;
  int hop = -1;                 // current or last position in the route; -1: at the coordinator
  double arrived_s = 0;         // arrival of the query
  double issued_s = 0;          // begin of this iteration
  double sent_s = 0;            // when it was put onto its last link
  double link_bytes_per_s = 0;  // bandwidth that it occupies there

  int tokens() const { return decoding ? 1 : input_tokens; }
  int previous_tokens() const { return decoding ? input_tokens + decoded : 0; }
};

struct HelixLinkState {
  double free_bytes_per_s = 0;
  int sending = 0;  // queries that occupy bandwidth
};

// A node or the coordinator, as sender and receiver.
struct HelixEndpoint {
  std::vector<int> out_links, in_links;
  double free_out_bytes_per_s = 0, free_in_bytes_per_s = 0;
};

struct HelixState {
  HelixState(const HelixModel& model, const HelixCluster& cluster);

  const HelixModel& model;
  const HelixCluster& cluster;
  std::vector<HelixLinkState> links;
  std::vector<HelixEndpoint> endpoints;  // [coordinator()] is the coordinator
  std::vector<int> entry_queue;          // by node: queries waiting for its first layer
  std::vector<HelixQuery> queries;
  double now_s = 0;

  const HelixLink& LinkOf(const HelixHop& hop) const {
    return cluster.links[static_cast<size_t>(hop.link)];
  }
  // The layers of `node` beyond those done when leaving `from`; none at the coordinator.
  LayerRange LayersAt(int from, int node) const;
};

// A query to put on a link now.
struct HelixSend {
  HelixQueryIndex query = 0;
  int link = 0;
  double bytes_per_s = 0;
};

// Decides on which route and when queries are sent. It keeps the queries that wait at endpoints.
class HelixScheduler {
 public:
  virtual ~HelixScheduler() = default;

  // An iteration begins at the coordinator. Returns false if no route is available; the iteration
  // is dropped.
  virtual bool Begin(HelixState& state, HelixQueryIndex query) = 0;
  // `query` is ready to leave `endpoint`.
  virtual void Enqueue(HelixState& state, int endpoint, HelixQueryIndex query) = 0;
  // Appends what to send from `endpoint` now, and the endpoints to query again at once. A send's
  // hop must be in the query's route, at hop + 1.
  virtual void Schedule(HelixState& state, int endpoint, std::vector<HelixSend>* sends,
                        std::vector<int>* ask_again) = 0;
  // All tokens of `query` are out.
  virtual void End(HelixState&, HelixQueryIndex) {}
  // Helix's scheduler knows the reserved share of the cache at the scarcest layer; the others do
  // not.
  virtual std::optional<double> BottleneckUsage() const { return std::nullopt; }
};

// Queries that wait for one link, in the order of their arrival at the endpoint.
struct HelixWaiting {
  uint64_t order = 0;
  HelixQueryIndex query = 0;
};
using HelixQueue = std::deque<HelixWaiting>;

}  // namespace millrace::experiments::helix
