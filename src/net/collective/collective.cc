#include "net/collective/collective.h"

#include <fmt/core.h>

#include <bit>

namespace millrace::net {

Status CheckRank(int rank, int size) {
  if (size < 1 || size > kCollectiveRanksMax || !std::has_single_bit(static_cast<unsigned>(size))) {
    return InvalidArgument(
        fmt::format("tensor parallelism of {} is not supported; use 1, 2, 4 or 8", size));
  }
  if (rank < 0 || rank >= size) {
    return InvalidArgument(fmt::format("rank {} of {}; ranks are [0, {})", rank, size, size));
  }
  return OkStatus();
}

}  // namespace millrace::net
