// PrefixIndex: maps the name of a prefix to the block that holds its last block_size tokens.
//
// A name alone is not trusted: a hit also needs the same tokens in the block and the same parent,
// identified by a number that stands for exactly one prefix (a link). A hash collision, forced or
// accidental, is therefore a miss and never returns another prefix's content.
//
// Open addressing over memory that the constructor allocates. Owned and called by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/ids.h"
#include "kv/block_hash.h"

namespace millrace::kv {

// Identifies one prefix and is never reused. Roots have the top bit set.
using PrefixLink = uint64_t;
PrefixLink RootLink(const Digest& root);

class PrefixIndex {
 public:
  PrefixIndex(int num_blocks, int block_size);

  struct Hit {
    BlockIndex block = 0;
    PrefixLink link = 0;
  };
  std::optional<Hit> Find(const Digest& name, PrefixLink parent, std::span<const TokenId> tokens);

  // Records that `block` holds that prefix's last block; returns its new link.
  // REQUIRES: the block is not in the index, and Find would miss.
  PrefixLink Insert(BlockIndex block, const Digest& name, PrefixLink parent,
                    std::span<const TokenId> tokens);
  void Erase(BlockIndex block);  // REQUIRES: Contains(block)
  bool Contains(BlockIndex block) const { return entries_[block].used; }

  int size() const { return size_; }
  // Lookups whose names matched but whose tokens or parent did not.
  uint64_t collisions() const { return collisions_; }

 private:
  struct Entry {
    Digest name;
    PrefixLink parent = 0;
    PrefixLink link = 0;
    bool used = false;
  };
  static constexpr BlockIndex kEmpty = INT32_MAX;

  size_t HomeOf(const Digest& name) const { return name.prefix() & (slots_.size() - 1); }
  std::span<TokenId> TokensOf(BlockIndex block) {
    return std::span(tokens_).subspan(static_cast<size_t>(block) * block_size_, block_size_);
  }

  int block_size_;
  std::vector<Entry> entries_;     // by block
  std::vector<TokenId> tokens_;    // by block
  std::vector<BlockIndex> slots_;  // a power of two, at most half full
  int size_ = 0;
  PrefixLink next_link_ = 1;
  uint64_t collisions_ = 0;
};

}  // namespace millrace::kv
