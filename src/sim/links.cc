#include "sim/links.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::sim {

Links::Links(const ClusterSpec& cluster) {
  for (const TrunkSpec& trunk : cluster.trunks) trunks_.push_back({trunk.bytes_per_s, Time{}});
  for (const NodeSpec& node : cluster.nodes) {
    std::optional<Line> card;
    if (node.nic_bytes_per_s) card = Line{*node.nic_bytes_per_s, Time{}};
    cards_out_.push_back(card);
    cards_in_.push_back(card);
  }
  cards_out_.emplace_back();  // the coordinator's card is never the limit
  cards_in_.emplace_back();
  for (const LinkSpec& link : cluster.links) {
    index_[Key(link.from, link.to)] = static_cast<int>(links_.size());
    links_.push_back({.line = {link.bytes_per_s, Time{}},
                      .latency = link.latency,
                      .trunk = link.trunk,
                      .use = {.from = link.from, .to = link.to}});
  }
}

Time Links::Line::Carry(double bytes, Time now) {
  return free = std::max(free, now) + Duration::Seconds(bytes / bytes_per_s);
}

Time Links::Send(int from, int to, double bytes, Time now) {
  if (from == to) return now;
  const auto found = index_.find(Key(from, to));
  MR_CHECK(found != index_.end()) << "no link from " << from << " to " << to;
  Link& link = links_[found->second];
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
