#include "text/stop_matcher.h"

#include <utility>

namespace millrace::text {

StopMatcher::StopMatcher(std::span<const std::string> stops, bool include_stop)
    : include_stop_(include_stop) {
  for (uint32_t i = 0; i < stops.size(); ++i) {
    stop_sizes_.push_back(static_cast<uint32_t>(stops[i].size()));
    uint32_t node = 0;
    for (char c : stops[i]) node = AddChild(node, static_cast<uint8_t>(c));
    if (node != 0 && !nodes_[node].longest_stop.has_value()) nodes_[node].longest_stop = i;
  }
  LinkFallbacks();
}

uint32_t StopMatcher::Child(uint32_t node, uint8_t byte) const {
  uint32_t child = nodes_[node].first_child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].next_sibling;
  return child;
}

uint32_t StopMatcher::AddChild(uint32_t node, uint8_t byte) {
  if (uint32_t child = Child(node, byte); child != 0) return child;
  const auto child = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back(
      {.byte = byte, .depth = nodes_[node].depth + 1, .next_sibling = nodes_[node].first_child});
  nodes_[node].first_child = child;
  return child;
}

// The longest suffix of (node's text + byte) that is a node.
uint32_t StopMatcher::Next(uint32_t node, uint8_t byte) const {
  for (;;) {
    if (uint32_t child = Child(node, byte); child != 0) return child;
    if (node == 0) return 0;
    node = nodes_[node].fallback;
  }
}

// Breadth first: a node's fallback is less deep, so it is complete before the node.
void StopMatcher::LinkFallbacks() {
  std::vector<uint32_t> queue = {0};
  for (size_t i = 0; i < queue.size(); ++i) {
    const uint32_t node = queue[i];
    for (uint32_t child = nodes_[node].first_child; child != 0;
         child = nodes_[child].next_sibling) {
      Node& c = nodes_[child];
      if (node != 0) c.fallback = Next(nodes_[node].fallback, c.byte);
      if (!c.longest_stop.has_value()) c.longest_stop = nodes_[c.fallback].longest_stop;
      queue.push_back(child);
    }
  }
}

StopResult StopMatcher::Push(std::string_view text) {
  StopResult result;
  if (stopped_) return result;
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = Next(state_, static_cast<uint8_t>(text[i]));
    if (!nodes_[state_].longest_stop.has_value()) continue;
    result.stop = *nodes_[state_].longest_stop;
    result.text = std::exchange(held_, {});
    result.text += text.substr(0, i + 1);
    if (!include_stop_) result.text.resize(result.text.size() - stop_sizes_[*result.stop]);
    stopped_ = true;
    return result;
  }
  result.text = std::exchange(held_, {});
  result.text += text;
  held_ = result.text.substr(result.text.size() - nodes_[state_].depth);
  result.text.resize(result.text.size() - held_.size());
  return result;
}

std::string StopMatcher::PushUnmatched(std::string_view text) {
  if (stopped_) return {};
  state_ = 0;
  return std::exchange(held_, {}).append(text);
}

std::string StopMatcher::Flush() {
  state_ = 0;
  return std::exchange(held_, {});
}

}  // namespace millrace::text
