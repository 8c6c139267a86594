// Collective: how the tensor-parallel ranks of one stage add their partial products.
//
// Sums are pairwise by rank, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)): the order in which one
// device adds its virtual shards (tensor/device.h), so that every degree gives the same bits, on
// every rank.
//
// All ranks make the same calls with the same sizes in the same order; a call returns when this
// rank has the result. A collective fails once and for all: a peer that is gone, one that does not
// come within the deadline, a call of another size, Abort by any rank. From then on every call of
// every rank returns an error, at the latest after the deadline; the values of the call that failed
// are garbage. There is no repair; make a new group.
//
// Owned by whoever loads the stage, outlives the model that uses it. One thread makes the calls;
// Abort is for any thread.
#pragma once

#include <span>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace millrace::net {

inline constexpr int kCollectiveRanksMax = 8;  // and a power of two
inline constexpr Duration kCollectiveDeadline = Duration::Seconds(30);

class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;  // 1, 2, 4 or 8

  // values = the sum of all ranks' values. kUnavailable: see above, with which rank and why.
  virtual Status AllReduceSum(std::span<float> values) = 0;

  // Ends the calls of all ranks, soon, with an error that carries `why` where it was called.
  virtual void Abort(std::string_view why) = 0;
};

// Size in {1, 2, 4, 8}, rank in [0, size); else kInvalidArgument.
Status CheckRank(int rank, int size);

}  // namespace millrace::net
