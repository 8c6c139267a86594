#include "stage/activation_cache.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace millrace::stage {

ActivationCache::ActivationCache(ActivationBudget& budget, size_t row_bytes, int block_size,
                                 int num_blocks, int num_host_blocks)
    : budget_(budget),
      row_bytes_(row_bytes),
      block_size_(block_size),
      device_(static_cast<size_t>(num_blocks)),
      host_(static_cast<size_t>(num_host_blocks)) {}

ActivationCache::~ActivationCache() {
  budget_.bytes -= block_bytes() * static_cast<size_t>(allocated_);
}

template <typename F>
bool ActivationCache::Along(std::span<const BlockIndex> table, int first_token, int end_token,
                            F f) const {
  for (int t = first_token; t < end_token;) {
    const auto [at, offset] = std::div(t, block_size_);
    if (at >= std::ssize(table)) return false;
    const auto block = static_cast<size_t>(table[static_cast<size_t>(at)]);
    if (block >= device_.size()) return false;
    const int count = std::min(block_size_ - offset, end_token - t);
    if (!f(block, offset, count)) return false;
    t += count;
  }
  return true;
}

void ActivationCache::MoveBlocks(const StepPlan& plan) {
  for (const BlockCopy& c : plan.swap_out) Copy(host_, c.to, device_, c.from);
  for (const BlockCopy& c : plan.swap_in) Copy(device_, c.to, host_, c.from);
  for (const BlockCopy& c : plan.copies) Copy(device_, c.to, device_, c.from);
}

bool ActivationCache::Allocate(Block& block, size_t factor) {
  if (block.rows) return true;
  if (budget_.bytes + block_bytes() > factor * budget_.bytes_max) return false;
  budget_.bytes += block_bytes();
  ++allocated_;
  block.rows = std::make_unique_for_overwrite<std::byte[]>(block_bytes());
  return true;
}

void ActivationCache::Copy(std::vector<Block>& to, BlockIndex to_block,
                           const std::vector<Block>& from, BlockIndex from_block) {
  if (static_cast<size_t>(to_block) >= to.size() ||
      static_cast<size_t>(from_block) >= from.size()) {
    return;
  }
  const Block& source = from[static_cast<size_t>(from_block)];
  Block& target = to[static_cast<size_t>(to_block)];
  const int count = source.count;
  target.count = 0;
  if (count == 0 || !Allocate(target, 1)) return;
  std::memcpy(target.rows.get(), source.rows.get(), static_cast<size_t>(count) * row_bytes_);
  target.count = count;
}

void ActivationCache::Put(std::span<const BlockIndex> table, int first_token,
                          std::span<const std::byte> rows, size_t factor) {
  const int tokens = static_cast<int>(rows.size() / row_bytes_);
  const std::byte* from = rows.data();
  Along(table, first_token, first_token + tokens, [&](size_t index, int offset, int count) {
    Block& block = device_[index];
    const size_t bytes = static_cast<size_t>(count) * row_bytes_;
    if (offset <= block.count && Allocate(block, factor)) {
      std::memcpy(block.rows.get() + static_cast<size_t>(offset) * row_bytes_, from, bytes);
      block.count = offset + count;
    }
    from += bytes;
    return true;
  });
}

void ActivationCache::End(std::span<const BlockIndex> table, int first_token, int end_token) {
  Along(table, first_token, end_token, [&](size_t index, int offset, int) {
    Block& block = device_[index];
    block.count = std::min<int>(block.count, offset);
    return true;
  });
}

void ActivationCache::Free(std::span<const BlockIndex> blocks) {
  for (const BlockIndex index : blocks) {
    if (static_cast<size_t>(index) >= device_.size()) continue;
    Block& block = device_[static_cast<size_t>(index)];
    block.count = 0;
    if (!block.rows) continue;
    block.rows.reset();
    budget_.bytes -= block_bytes();
    --allocated_;
  }
}

bool ActivationCache::Holds(std::span<const BlockIndex> table, int first_token,
                            int end_token) const {
  return Along(table, first_token, end_token, [&](size_t index, int offset, int count) {
    return device_[index].count >= offset + count;
  });
}

bool ActivationCache::Read(std::span<const BlockIndex> table, int first_token, int end_token,
                           std::span<std::byte> out) const {
  if (!Holds(table, first_token, end_token)) return false;
  std::byte* to = out.data();
  return Along(table, first_token, end_token, [&](size_t index, int offset, int count) {
    const size_t bytes = static_cast<size_t>(count) * row_bytes_;
    std::memcpy(to, device_[index].rows.get() + static_cast<size_t>(offset) * row_bytes_, bytes);
    to += bytes;
    return true;
  });
}

}  // namespace millrace::stage
