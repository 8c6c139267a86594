// HelixCapacity: the tokens per second that each node computes with k layers of one model, and that
// each link carries. It is the input of Helix's flow problem (Helix, section 4.1) when both were
// computed elsewhere. plan/io/helix_files.h reads it. Pure data; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace::plan {

struct HelixNode {
  std::string gpu;     // "A100"
  std::string region;  // "0"
  // [k - 1]: T(k) of a node that holds k layers, prompt and decode together. Not always falling in
  // k: fewer layers leave room for more sequences.
  std::vector<double> tokens_per_s;

  int max_layers() const { return static_cast<int>(tokens_per_s.size()); }
  // REQUIRES: 1 <= layers <= max_layers().
  double TokensPerSecond(int layers) const { return tokens_per_s[static_cast<size_t>(layers) - 1]; }
};

struct HelixCapacity {
  std::string cluster, model;
  int num_layers = 0;
  int64_t activation_bytes = 0;  // of one token between nodes
  int64_t token_bytes = 0;       // of one token between a node and the coordinator
  std::vector<HelixNode> nodes;
  // (nodes + 1)^2; row: sender, column: receiver. The last of each is the coordinator: Helix's
  // source as a sender and its sink as a receiver. 0: no edge.
  std::vector<double> link_tokens_per_s;

  int coordinator() const { return static_cast<int>(nodes.size()); }
  double LinkTokensPerSecond(int from, int to) const {
    return link_tokens_per_s[static_cast<size_t>(from) * (nodes.size() + 1) +
                             static_cast<size_t>(to)];
  }
};

}  // namespace millrace::plan
