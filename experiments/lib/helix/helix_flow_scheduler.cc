#include "experiments/lib/helix/helix_flow_scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::experiments::helix {
namespace {

double PlannedBytesPerS(const HelixModel& model, const HelixCluster& cluster,
                        const HelixLink& link) {
  const bool inner = link.from != cluster.coordinator() && link.to != cluster.coordinator();
  return link.flow_tokens_per_s * (model.token_bytes + (inner ? model.activation_bytes : 0));
}

}  // namespace

HelixFlowScheduler::HelixFlowScheduler(const HelixModel& model, const HelixCluster& cluster,
                                       HelixKvMask mask)
    : cluster_(cluster),
      mask_(mask),
      senders_(cluster.nodes.size() + 1),
      waiting_(cluster.links.size()) {
  std::vector<double> out(senders_.size());
  for (const HelixLink& link : cluster.links) {
    out[static_cast<size_t>(link.from)] += link.flow_tokens_per_s;
  }
  for (size_t i = 0; i < cluster.links.size(); ++i) {
    const HelixLink& link = cluster.links[i];
    const double least = kShareMin * out[static_cast<size_t>(link.from)];
    planned_bytes_per_s_.push_back(PlannedBandwidth(model, link));
    if (link.flow_tokens_per_s <= 0 || link.flow_tokens_per_s < least) continue;
    Sender& sender = senders_[static_cast<size_t>(link.from)];
    sender.links.push_back(static_cast<int>(i));
    sender.loads.push_back(0);
  }
  for (const HelixNode& node : cluster.nodes) kv_free_.push_back(node.kv_entries);
}

// The wire's bandwidth, or the link's share of the sender's or receiver's card by planned bytes if
// that is less.
double HelixFlowScheduler::PlannedBandwidth(const HelixModel& model, const HelixLink& link) const {
  if (link.flow_tokens_per_s <= 0) return link.bytes_per_s;
  double out = 0, in = 0;
  const double own = PlannedBytesPerS(model, cluster_, link);
  for (const HelixLink& other : cluster_.links) {
    if (other.from == link.from) out += PlannedBytesPerS(model, cluster_, other);
    if (other.to == link.to) in += PlannedBytesPerS(model, cluster_, other);
  }
  const int end = cluster_.coordinator();
  const double nic_out = link.from == end
                             ? cluster_.nic_out_bytes_per_s
                             : cluster_.nodes[static_cast<size_t>(link.from)].nic_out_bytes_per_s;
  const double nic_in = link.to == end
                            ? cluster_.nic_in_bytes_per_s
                            : cluster_.nodes[static_cast<size_t>(link.to)].nic_in_bytes_per_s;
  return std::floor(std::min({link.bytes_per_s, nic_out * own / out, nic_in * own / in}));
}

int HelixFlowScheduler::ExpectedTokens(int input_tokens) const {
  return static_cast<int>(input_tokens + HelixModel::kMeanOutputTokens * mask_.output_ratio);
}

// Assumes that the request runs all of the node's layers, although it is charged only for those it
// runs.
bool HelixFlowScheduler::HasRoom(int node, int tokens) const {
  if (node == cluster_.coordinator()) return true;
  const HelixNode& spec = cluster_.nodes[static_cast<size_t>(node)];
  const int64_t after =
      kv_free_[static_cast<size_t>(node)] - int64_t{ExpectedTokens(tokens)} * spec.layers.size();
  return static_cast<double>(after) >=
         (1 - mask_.high_water) * static_cast<double>(spec.kv_entries);
}

std::optional<size_t> HelixFlowScheduler::Choose(const Sender& sender, int tokens) const {
  std::optional<size_t> best;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < sender.links.size(); ++i) {
    const HelixLink& link = cluster_.links[static_cast<size_t>(sender.links[i])];
    if (!HasRoom(link.to, tokens)) continue;
    const double after = sender.loads[i] + tokens / link.flow_tokens_per_s;
    if (after < least) {
      least = after;
      best = i;
    }
  }
  return best;
}

// Walks to the coordinator. At a dead end, restores the loads.
bool HelixFlowScheduler::Route(HelixState& state, HelixQuery& query) {
  const int tokens = query.input_tokens;
  std::vector<std::pair<int, size_t>> chosen;  // sender, its link
  int at = cluster_.coordinator();
  do {
    Sender& sender = senders_[static_cast<size_t>(at)];
    const auto choice = Choose(sender, tokens);
    if (!choice) break;
    const HelixLink& link = cluster_.links[static_cast<size_t>(sender.links[*choice])];
    sender.loads[*choice] += tokens / link.flow_tokens_per_s;
    chosen.emplace_back(at, *choice);
    query.route.push_back({sender.links[*choice], state.LayersAt(at, link.to)});
    at = link.to;
  } while (at != cluster_.coordinator());
  if (at == cluster_.coordinator() && !chosen.empty()) return true;
  for (const auto& [endpoint, i] : chosen) {
    Sender& sender = senders_[static_cast<size_t>(endpoint)];
    sender.loads[i] -=
        tokens / cluster_.links[static_cast<size_t>(sender.links[i])].flow_tokens_per_s;
  }
  return false;
}

void HelixFlowScheduler::Charge(const HelixState& state, const HelixQuery& query, int sign) {
  for (const HelixHop& hop : query.route) {
    const int node = state.LinkOf(hop).to;
    if (node == cluster_.coordinator()) continue;
    kv_free_[static_cast<size_t>(node)] -=
        int64_t{sign} * ExpectedTokens(query.input_tokens) * hop.layers.size();
  }
}

bool HelixFlowScheduler::Begin(HelixState& state, HelixQueryIndex index) {
  HelixQuery& query = state.queries[static_cast<size_t>(index)];
  if (!query.decoding) {
    if (!Route(state, query)) return false;
    Charge(state, query, 1);
    return true;
  }
  for (const HelixHop& hop : query.route) {
    const HelixLink& link = state.LinkOf(hop);
    Sender& sender = senders_[static_cast<size_t>(link.from)];
    const auto at = std::find(sender.links.begin(), sender.links.end(), hop.link);
    sender.loads[static_cast<size_t>(at - sender.links.begin())] += 1 / link.flow_tokens_per_s;
  }
  return true;
}

void HelixFlowScheduler::End(HelixState& state, HelixQueryIndex index) {
  Charge(state, state.queries[static_cast<size_t>(index)], -1);
}

void HelixFlowScheduler::Enqueue(HelixState& state, int, HelixQueryIndex index) {
  const HelixQuery& query = state.queries[static_cast<size_t>(index)];
  const HelixHop& next = query.route[static_cast<size_t>(query.hop + 1)];
  waiting_[static_cast<size_t>(next.link)].push_back({enqueued_++, index});
}

void HelixFlowScheduler::Schedule(HelixState& state, int endpoint, std::vector<HelixSend>* sends,
                                  std::vector<int>*) {
  heads_.clear();
  for (int link : senders_[static_cast<size_t>(endpoint)].links) {
    HelixQueue& queue = waiting_[static_cast<size_t>(link)];
    if (queue.empty() || state.links[static_cast<size_t>(link)].sending > 0) continue;
    heads_.push_back(queue.front());
    queue.pop_front();
  }
  std::sort(heads_.begin(), heads_.end(),
            [](const HelixWaiting& a, const HelixWaiting& b) { return a.order < b.order; });
  for (const HelixWaiting& head : heads_) {
    const HelixQuery& query = state.queries[static_cast<size_t>(head.query)];
    const int link = query.route[static_cast<size_t>(query.hop + 1)].link;
    sends->push_back({head.query, link, planned_bytes_per_s_[static_cast<size_t>(link)]});
  }
}

std::optional<double> HelixFlowScheduler::BottleneckUsage() const {
  std::vector<double> free, total;
  for (size_t i = 0; i < cluster_.nodes.size(); ++i) {
    const HelixNode& node = cluster_.nodes[i];
    const auto end = static_cast<size_t>(node.layers.end);
    if (free.size() < end) {
      free.resize(end);
      total.resize(end);
    }
    for (auto layer = static_cast<size_t>(node.layers.begin); layer < end; ++layer) {
      free[layer] += static_cast<double>(kv_free_[i]) / node.layers.size();
      total[layer] += static_cast<double>(node.kv_entries) / node.layers.size();
    }
  }
  double most = 0;
  for (size_t layer = 0; layer < free.size(); ++layer) {
    if (total[layer] > 0) most = std::max(most, 1 - free[layer] / total[layer]);
  }
  return most;
}

}  // namespace millrace::experiments::helix
