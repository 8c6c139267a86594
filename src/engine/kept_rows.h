// KeptRows: the rows that entered one layer in one lane, by block, as KV lies: with the lane's
// block tables they are shared, copied and swapped like it. In host memory, and a help, not a
// promise: what has no room in the budget is missing, and Holds says so.
//
// A block is filled from its beginning, and begun anew by whoever has it next.
//
// Owned by a RowKeepingStage's lane. Threads: as KV in a stage, any on blocks that no running batch
// writes.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/step_plan.h"

namespace millrace::engine {

// What all lanes of a stage may keep together.
struct RowBudget {
  const size_t bytes_max;
  std::atomic<size_t> bytes = 0;
};

class KeptRows {
 public:
  // The budget outlives it.
  KeptRows(RowBudget& budget, size_t row_bytes, int block_size, int num_blocks,
           int num_host_blocks);
  ~KeptRows();

  // Follows the plan's copies and swaps.
  void MoveBlocks(const StepPlan& plan);
  // Rows of tokens [first_token, ...) as far as `rows` goes, in a sequence with that table. Up to
  // `factor` times the budget.
  void Put(std::span<const BlockIndex> table, int first_token, std::span<const std::byte> rows,
           size_t factor);
  // These tokens' KV is another's now.
  void End(std::span<const BlockIndex> table, int first_token, int end_token);
  // Nobody will ask for the rows of these blocks.
  void Free(std::span<const BlockIndex> blocks);
  bool empty() const { return allocated_ == 0; }
  bool Holds(std::span<const BlockIndex> table, int first_token, int end_token) const;
  // False, with nothing written: not all of them are held. `out`: [tokens, row_bytes].
  bool Read(std::span<const BlockIndex> table, int first_token, int end_token,
            std::span<std::byte> out) const;

 private:
  // Rows of one block: the first `count` of its tokens.
  struct Block {
    std::unique_ptr<std::byte[]> rows;
    std::atomic<int> count = 0;
  };

  bool Allocate(Block& block, size_t factor);
  void Copy(std::vector<Block>& to, BlockIndex to_block, const std::vector<Block>& from,
            BlockIndex from_block);
  size_t block_bytes() const { return static_cast<size_t>(block_size_) * row_bytes_; }
  // Calls f(block, first offset in it, count) along [first_token, end_token); ends where f says no.
  template <typename F>
  bool Along(std::span<const BlockIndex> table, int first_token, int end_token, F f) const;

  RowBudget& budget_;
  const size_t row_bytes_;
  const int block_size_;
  std::atomic<int> allocated_ = 0;  // blocks
  std::vector<Block> device_, host_;
};

}  // namespace millrace::engine
