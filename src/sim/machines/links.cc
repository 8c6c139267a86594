#include "sim/machines/links.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::sim {

Links::Links(const ClusterSpec& cluster, std::optional<OtherLinks> others)
    : others_(others), coordinator_(cluster.coordinator()) {
  for (const TrunkSpec& trunk : cluster.trunks)
    trunks_.push_back({.bytes_per_s = trunk.bytes_per_s});
  for (const NodeSpec& node : cluster.nodes) {
    std::optional<Line> card;
    if (node.nic_bytes_per_s) card = Line{.bytes_per_s = *node.nic_bytes_per_s};
    cards_out_.push_back(card);
    cards_in_.push_back(card);
  }
  cards_out_.emplace_back();  // the coordinator's card is never the limit
  cards_in_.emplace_back();
  for (const LinkSpec& link : cluster.links) {
    index_[Key(link.from, link.to)] = static_cast<int>(links_.size());
    links_.push_back({.line = {.bytes_per_s = link.bytes_per_s},
                      .latency = link.latency,
                      .trunk = link.trunk,
                      .use = {.from = link.from, .to = link.to}});
  }
}

Time Links::Line::Carry(double bytes, Time now) {
  const Duration carries = Duration::Seconds(bytes / bytes_per_s);
  busy = busy + carries;
  return free = std::max(free, now) + carries;
}

// Links that the cluster does not name are made when they are first used.
Links::Link& Links::At(int from, int to) {
  const auto found = index_.find(Key(from, to));
  if (found != index_.end()) return links_[found->second];
  MR_CHECK(Connected(from, to)) << "no link from " << from << " to " << to;
  index_[Key(from, to)] = static_cast<int>(links_.size());
  links_.push_back({.line = {.bytes_per_s = others_->bytes_per_s},
                    .latency = others_->latency,
                    .trunk = {},
                    .use = {.from = from, .to = to}});
  return links_.back();
}

Duration Links::Latency(int from, int to) const {
  if (from == to) return {};
  const auto found = index_.find(Key(from, to));
  return found == index_.end() ? others_->latency : links_[found->second].latency;
}

Duration Links::Sending(int node) const {
  const auto& card = cards_out_[static_cast<size_t>(node)];
  return card ? card->busy : Duration();
}

Time Links::Send(int from, int to, double bytes, Time now) {
  if (from == to) return now;
  Link& link = At(from, to);
  link.use.longest_wait = std::max(link.use.longest_wait, link.line.free - now);
  link.use.bytes += bytes;
  link.use.busy = link.use.busy + Duration::Seconds(bytes / link.line.bytes_per_s);
  Time passed = link.line.Carry(bytes, now);
  if (link.trunk) passed = std::max(passed, trunks_[*link.trunk].Carry(bytes, now));
  if (cards_out_[from]) passed = std::max(passed, cards_out_[from]->Carry(bytes, now));
  if (cards_in_[to]) passed = std::max(passed, cards_in_[to]->Carry(bytes, now));
  return passed + link.latency;
}

std::vector<LinkUse> Links::Used() const {
  std::vector<LinkUse> used;
  for (const Link& link : links_) {
    if (link.use.bytes > 0) used.push_back(link.use);
  }
  return used;
}

}  // namespace millrace::sim
