// Step: one batch as devices see it: Orca's flattened mixed batch (OSDI'22 section 3.2), with the
// token and the position of each row and the place of each sequence's KV. Given to a device once
// (Device::BeginStep); every later call names rows of it, because some rows may be at a layer at
// which others are not.
//
// Views of the caller's memory, which stays as it is until the next step. Values; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"
#include "core/step_plan.h"
#include "tensor/objects.h"

namespace millrace::tensor {

// One sequence's rows: queries at positions [start, start + num_rows), which see keys
// [max(0, position - window + 1), position].
struct AttentionSpan {
  int first_row = 0, num_rows = 0;     // counted from the part's first row
  int start = 0;                       // position of the first row
  std::span<const BlockIndex> blocks;  // the block table, covering start + num_rows tokens
};

// Adjacent rows whose sequences share a pool. They are at the same layers.
struct StepPart {
  KvPool* pool = nullptr;
  int first_layer = 0;  // the model's layer that is the pool's layer 0
  int first_row = 0, rows = 0;
  std::span<const AttentionSpan> spans;  // together all of the part's rows
};

struct Step {
  std::span<const TokenId> tokens;     // [rows]; may be empty if no row is embedded
  std::span<const int32_t> positions;  // [rows]
  std::span<const StepPart> parts;     // one after the other; may be empty if no row attends
  std::span<const int32_t> outputs;    // the rows whose logits are wanted

  int rows() const { return static_cast<int>(positions.size()); }
};

// Rows [first, first + count) of a step: whole parts. A matrix of a call has one row for each.
struct RowRange {
  int first = 0, count = 0;
};

}  // namespace millrace::tensor
