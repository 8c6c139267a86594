#include "model/sharding.h"

#include <fmt/format.h>

#include "base/check.h"
#include "net/collective/collective.h"

namespace millrace::model {
namespace {

bool Divides(const ModelSpec& spec, int size) {
  const bool kv_heads = spec.num_kv_heads % size == 0 || size % spec.num_kv_heads == 0;
  return kv_heads && spec.num_heads % size == 0 && spec.intermediate_size % size == 0;
}

}  // namespace

Share ShareOf(int units, TensorRank rank) {
  if (units >= rank.size) {
    MR_CHECK(units % rank.size == 0) << units << " units, " << rank.size << " ranks";
    const int each = units / rank.size;
    return {each * rank.rank, each * (rank.rank + 1)};
  }
  MR_CHECK(rank.size % units == 0) << units << " units, " << rank.size << " ranks";
  const int unit = rank.rank / (rank.size / units);
  return {unit, unit + 1};
}

Status CheckSharding(const ModelSpec& spec, TensorRank rank) {
  MR_RETURN_IF_ERROR(net::CheckRank(rank.rank, rank.size));
  if (Divides(spec, rank.size)) return OkStatus();
  std::string degrees;
  for (int size = 1; size <= net::kCollectiveRanksMax; size *= 2) {
    if (Divides(spec, size)) degrees += fmt::format("{}{}", degrees.empty() ? "" : ", ", size);
  }
  return InvalidArgument(fmt::format(
      "tensor parallelism of {} does not divide the model's {} heads, {} KV heads and {} "
      "feed-forward columns; possible: {}",
      rank.size, spec.num_heads, spec.num_kv_heads, spec.intermediate_size, degrees));
}

}  // namespace millrace::model
