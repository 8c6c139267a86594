#include "cluster/control/parts/edge_flows.h"

namespace millrace::cluster {
namespace {

EdgePhase PhaseOf(StageRole role) {
  switch (role) {
    case StageRole::kBoth: return EdgePhase::kBoth;
    case StageRole::kPrefill: return EdgePhase::kPrefill;
    case StageRole::kDecode: return EdgePhase::kDecode;
  }
  return EdgePhase::kBoth;
}

}  // namespace

EdgeFlows::Flow& EdgeFlows::Flow::operator+=(const Flow& other) {
  tokens += other.tokens;
  requests += other.requests;
  bytes += other.bytes;
  seconds += other.seconds;
  return *this;
}

// The entry of `edge`, or of the other edges of its phase.
EdgeFlows::Entries::value_type& EdgeFlows::EntryOf(const Key& edge) {
  if (const auto found = entries_.find(edge); found != entries_.end()) return *found;
  if (entries_.size() >= edges_max_) {
    std::erase_if(entries_, [](const auto& entry) {
      return entry.second.pipelines == 0 && entry.first.from != kOther;
    });
  }
  const bool room = entries_.size() < edges_max_;
  return *entries_.try_emplace(room ? edge : Key{kOther, kOther, edge.phase}).first;
}

std::vector<EdgeFlows::Key> EdgeFlows::Opened(StageRole role,
                                              const std::vector<std::string>& workers) {
  std::vector<Key> edges;
  std::string from = kCoordinator;
  for (size_t i = 0; i <= workers.size(); ++i) {
    const std::string to = i < workers.size() ? workers[i] : kCoordinator;
    auto& [edge, entry] = EntryOf({from, to, PhaseOf(role)});
    ++entry.pipelines;
    edges.push_back(edge);
    from = to;
  }
  return edges;
}

void EdgeFlows::Closed(const std::vector<Key>& edges, const Flow& flow) {
  for (const Key& edge : edges) {
    Entry& entry = entries_.at(edge);
    entry.flow += flow;
    --entry.pipelines;
  }
}

EdgeFlows::Table EdgeFlows::Added() const {
  Table table;
  for (const auto& [edge, entry] : entries_) table.emplace(edge, entry.flow);
  return table;
}

}  // namespace millrace::cluster
