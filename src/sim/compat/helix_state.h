// HelixState: queries, nodes' queues and links of an imitated Helix run, as its schedulers see
// them. Owned by HelixSimulator; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "sim/compat/helix_cluster.h"
#include "sim/compat/helix_model.h"

namespace millrace::sim {

using HelixQueryIndex = int32_t;  // a place in HelixState::queries, reused after the query is done

// One stop of a query's way: the link taken and what runs at its end; no layers at the coordinator.
struct HelixHop {
  int link = 0;
  LayerRange layers;
};

// A request: a prompt iteration, then one iteration per output token, one at a time, all on the
// route that the prompt took.
struct HelixQuery {
  int input_tokens = 0, output_tokens = 0;
  int decoded = 0;  // iterations after the prompt that are done
  bool decoding = false;
  std::vector<HelixHop> route;
  int hop = -1;                 // where in the route it is, or last was; -1: at the coordinator
  double arrived_s = 0;         // the query
  double issued_s = 0;          // this iteration
  double sent_s = 0;            // onto the link it last took
  double link_bytes_per_s = 0;  // that it occupies there

  int tokens() const { return decoding ? 1 : input_tokens; }
  int previous_tokens() const { return decoding ? input_tokens + decoded : 0; }
};

struct HelixLinkState {
  double free_bytes_per_s = 0;
  int sending = 0;  // queries that occupy bandwidth
};

// A node, or the coordinator, as a sender and a receiver.
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
  std::vector<int> entry_queue;          // by node: queries that wait for its first layer
  std::vector<HelixQuery> queries;
  double now_s = 0;

  const HelixLink& LinkOf(const HelixHop& hop) const {
    return cluster.links[static_cast<size_t>(hop.link)];
  }
  // The layers of `node` beyond those done on leaving `from`; none at the coordinator.
  LayerRange LayersAt(int from, int node) const;
};

// A query to put on a link now.
struct HelixSend {
  HelixQueryIndex query = 0;
  int link = 0;
  double bytes_per_s = 0;
};

// Which way queries go and when they are sent. It keeps the queries that wait at endpoints.
class HelixScheduler {
 public:
  virtual ~HelixScheduler() = default;

  // An iteration begins at the coordinator. False: there is no way for it now, and it is dropped.
  virtual bool Begin(HelixState& state, HelixQueryIndex query) = 0;
  // `query` is ready to leave `endpoint`.
  virtual void Enqueue(HelixState& state, int endpoint, HelixQueryIndex query) = 0;
  // Appends what to send from `endpoint` now, and the endpoints to be asked again at once. A send's
  // hop must be in the query's route, at hop + 1.
  virtual void Schedule(HelixState& state, int endpoint, std::vector<HelixSend>* sends,
                        std::vector<int>* ask_again) = 0;
  // All tokens of `query` are out.
  virtual void End(HelixState&, HelixQueryIndex) {}
  // Helix's scheduler knows the share of the cache it has promised, at the scarcest layer; the
  // others cannot tell.
  virtual std::optional<double> BottleneckUsage() const { return std::nullopt; }
};

// Queries that wait for one link, in the order of their coming to the endpoint.
struct HelixWaiting {
  uint64_t order = 0;
  HelixQueryIndex query = 0;
};
using HelixQueue = std::deque<HelixWaiting>;

}  // namespace millrace::sim
