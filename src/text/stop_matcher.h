// StopMatcher: finds stop strings in text that arrives in pieces, wherever the pieces are cut.
//
// Text is held back only while its end is a proper prefix of some stop string, so nothing that
// belongs to a stop string is ever given out, and nothing else waits. The match that ends first
// wins; of several that end together, the longest. (Aho and Corasick, 1975.)
//
// One per sequence, used by one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::text {

struct StopResult {
  std::string text;            // what may be shown
  std::optional<size_t> stop;  // which stop string was found; nothing comes after it
};

class StopMatcher {
 public:
  // Texts and stop strings are valid UTF-8, so that a match never cuts a character. Empty stop
  // strings never match. With `include_stop`, the stop string itself is shown as well.
  explicit StopMatcher(std::span<const std::string> stops, bool include_stop = false);

  StopResult Push(std::string_view text);
  // As Push, for text in which no stop string counts (min_tokens): shows all, finds nothing, and no
  // later match begins in it.
  std::string PushUnmatched(std::string_view text);
  // The end of the sequence: what was held back.
  std::string Flush();

  bool stopped() const { return stopped_; }
  size_t held_bytes() const { return held_.size(); }

 private:
  // A node is a prefix of some stop strings; its children are a linked list.
  struct Node {
    uint8_t byte = 0;
    uint32_t depth = 0;
    uint32_t first_child = 0;
    uint32_t next_sibling = 0;
    uint32_t fallback = 0;                 // the longest proper suffix that is a node
    std::optional<uint32_t> longest_stop;  // the longest stop string that ends here
  };

  uint32_t Child(uint32_t node, uint8_t byte) const;
  uint32_t AddChild(uint32_t node, uint8_t byte);
  uint32_t Next(uint32_t node, uint8_t byte) const;
  void LinkFallbacks();

  std::vector<Node> nodes_{1};  // 0 is the root; no node has the root as a child, so 0 means none
  std::vector<uint32_t> stop_sizes_;
  bool include_stop_;
  bool stopped_ = false;
  uint32_t state_ = 0;
  std::string held_;
};

}  // namespace millrace::text
