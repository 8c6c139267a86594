// ActivationCache: the activations that entered one layer in one pipeline, stored by block like KV:
// they are shared, copied and swapped with the pipeline's block tables. In host memory and best
// effort: what exceeds the budget is missing, and Holds says so.
//
// A block is filled from its beginning, and restarted by its next user.
//
// Owned by an ActivationCachingStage's pipeline. Threads: as KV in a stage, any on blocks that no
// running batch writes.
// running batch writes.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/step_plan.h"

namespace millrace::stage {

// The memory that all pipelines of a stage may use together.
struct ActivationBudget {
  const size_t bytes_max;
  std::atomic<size_t> bytes = 0;
};

class ActivationCache {
 public:
  // The budget must outlive the cache.
  ActivationCache(ActivationBudget& budget, size_t row_bytes, int block_size, int num_blocks,
                  int num_host_blocks);
  ~ActivationCache();

  // Applies the plan's copies and swaps.
  void MoveBlocks(const StepPlan& plan);
  // Stores activations of tokens [first_token, ...), as many as `rows` has, for a sequence with
  // this table. May use up to `factor` times the budget.
  void Put(std::span<const BlockIndex> table, int first_token, std::span<const std::byte> rows,
           size_t factor);
  // The blocks of these tokens now hold another sequence's KV.
  void End(std::span<const BlockIndex> table, int first_token, int end_token);
  // The activations in these blocks are not needed any more.
  void Free(std::span<const BlockIndex> blocks);
  bool empty() const { return allocated_ == 0; }
  bool Holds(std::span<const BlockIndex> table, int first_token, int end_token) const;
  // Returns false and writes nothing if some of them are not held. `out`: [tokens, row_bytes].
  bool Read(std::span<const BlockIndex> table, int first_token, int end_token,
            std::span<std::byte> out) const;

 private:
  // Activations of one block: those of its first `count` tokens.
  struct Block {
    std::unique_ptr<std::byte[]> rows;
    std::atomic<int> count = 0;
  };

  bool Allocate(Block& block, size_t factor);
  void Copy(std::vector<Block>& to, BlockIndex to_block, const std::vector<Block>& from,
            BlockIndex from_block);
  size_t block_bytes() const { return static_cast<size_t>(block_size_) * row_bytes_; }
  // Calls f(block, first offset in it, count) along [first_token, end_token); stops when f returns
  // false.
  template <typename F>
  bool Along(std::span<const BlockIndex> table, int first_token, int end_token, F f) const;

  ActivationBudget& budget_;
  const size_t row_bytes_;
  const int block_size_;
  std::atomic<int> allocated_ = 0;  // blocks
  std::vector<Block> device_, host_;
};

}  // namespace millrace::stage
