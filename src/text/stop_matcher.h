// StopMatcher: finds stop strings in text that arrives in pieces, wherever it is cut.
//
// Text is held back only while its end is a proper prefix of some stop string, so no part of a stop
// string is ever shown and no other text waits. The match that ends first wins; of several that end
// together, the longest. (Aho and Corasick, 1975.)
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
  std::string text;            // text that may be shown
  std::optional<size_t> stop;  // the stop string that was found; no text follows it
};

class StopMatcher {
 public:
  // Texts and stop strings are valid UTF-8, so a match never cuts a character. Empty stop strings
  // never match. With `include_stop`, the stop string is shown too.
  explicit StopMatcher(std::span<const std::string> stops, bool include_stop = false);

  StopResult Push(std::string_view text);
  // Like Push, for text in which stop strings do not count (min_tokens): shows all of it, finds
  // nothing, and no later match starts in it.
  std::string PushUnmatched(std::string_view text);
  // Ends the sequence: returns the held-back text.
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
