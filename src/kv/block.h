// The vocabulary of the KV ledger: handles, states, tables. Pure data; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/strong_id.h"
#include "core/ids.h"

namespace millrace::kv {

// One use of one place in a pool. The generation grows whenever the place is allocated again, so a
// stale handle is detected instead of naming another sequence's block.
struct BlockHandle {
  BlockIndex index = 0;
  uint32_t generation = 0;
  friend bool operator==(BlockHandle, BlockHandle) = default;
};

// Every block is in exactly one state; `free + cached + owned + pinned + pending == total`.
enum class BlockState : uint8_t {
  kFree,         // no owner, no content
  kCached,       // no owner, content kept for a prefix hit until it is evicted
  kOwned,        // named by at least one table
  kPinned,       // named by no table, used by a transfer until it ends or its lease expires
  kPendingFree,  // named by no table, still used by a step in flight
};
inline constexpr int kBlockStates = 5;
const char* BlockStateName(BlockState state);  // "free", "cached", ...

// The blocks of one sequence, in the order of its tokens.
using BlockTable = std::vector<BlockHandle>;

using PinId = StrongId<struct PinIdTag>;

}  // namespace millrace::kv
