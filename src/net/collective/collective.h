// Collective: adds the partial products of the tensor-parallel ranks of one stage.
//
// Sums are pairwise by rank, ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), the order in which one
// device adds its virtual shards (tensor/device.h). So every degree gives the same bits on every
// rank.
//
// All ranks make the same calls with the same sizes in the same order; a call returns when this
// rank has the result. A call fails when a peer is gone or misses the deadline, when the ranks pass
// different sizes, or after Abort by any rank. A failure is permanent: from then on every call of
// every rank returns an error, at the latest after the deadline. The values of the failed call are
// undefined.
// A collective cannot be repaired; make a new group.
//
// Owned by the loader of the stage; outlives the model that uses it. One thread makes the calls;
// any thread may call Abort and Waits.
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

  // Replaces `values` by the sum of all ranks' values. kUnavailable: see above; the message names
  // the rank and the cause.
  virtual Status AllReduceSum(std::span<float> values) = 0;

  // Whether a call waits for another rank at the moment. Any thread.
  virtual bool Waits() const = 0;

  // Makes the calls of all ranks fail soon. The error carries `why` on the rank that called Abort.
  virtual void Abort(std::string_view why) = 0;
};

// Size in {1, 2, 4, 8}, rank in [0, size); else kInvalidArgument.
Status CheckRank(int rank, int size);

}  // namespace millrace::net
