#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace millrace::kv {

PrefixLink RootLink(const Digest& root) { return root.prefix() | (uint64_t{1} << 63); }

PrefixIndex::PrefixIndex(int num_blocks, int block_size)
    : block_size_(block_size),
      entries_(num_blocks),
      tokens_(static_cast<size_t>(num_blocks) * block_size),
      slots_(std::bit_ceil(static_cast<size_t>(std::max(num_blocks, 1)) * 2), kEmpty) {}

std::optional<PrefixIndex::Hit> PrefixIndex::Find(const Digest& name, PrefixLink parent,
                                                  std::span<const TokenId> tokens) {
  for (size_t i = HomeOf(name); slots_[i] != kEmpty; i = (i + 1) & (slots_.size() - 1)) {
    const Entry& entry = entries_[slots_[i]];
    if (entry.name != name) continue;
    if (entry.parent == parent && std::ranges::equal(TokensOf(slots_[i]), tokens)) {
      return Hit{slots_[i], entry.link};
    }
    ++collisions_;
  }
  return std::nullopt;
}

PrefixLink PrefixIndex::Insert(BlockIndex block, const Digest& name, PrefixLink parent,
                               std::span<const TokenId> tokens) {
  Entry& entry = entries_[block];
  MR_CHECK(!entry.used) << "block " << block << " is already in the prefix index";
  MR_CHECK(std::ssize(tokens) == block_size_) << "only full blocks are cached";
  entry = {name, parent, next_link_++, true};
  std::ranges::copy(tokens, TokensOf(block).begin());
  size_t i = HomeOf(name);
  while (slots_[i] != kEmpty) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = block;
  ++size_;
  return entry.link;
}

void PrefixIndex::Erase(BlockIndex block) {
  MR_CHECK(entries_[block].used) << "block " << block << " is not in the prefix index";
  const size_t mask = slots_.size() - 1;
  size_t hole = HomeOf(entries_[block].name);
  while (slots_[hole] != block) hole = (hole + 1) & mask;
  // Close the hole: move back every later entry of the run that may take its place.
  for (size_t i = (hole + 1) & mask; slots_[i] != kEmpty; i = (i + 1) & mask) {
    const size_t home = HomeOf(entries_[slots_[i]].name);
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    slots_[hole] = slots_[i];
    hole = i;
  }
  slots_[hole] = kEmpty;
  entries_[block].used = false;
  --size_;
}

}  // namespace millrace::kv
