#include "model/weight_pieces.h"

#include "model/sharding.h"

namespace millrace::model {

std::vector<OutputRun> OutputsOf(const LinearNeed& need, const LinearNeed::Part& part,
                                 TensorRank rank) {
  if (part.units == 0) return {{0, part.n}};
  const Share share = ShareOf(part.units, rank);
  std::vector<OutputRun> runs;
  if (need.interleaved_head_dim != 0) {
    // A unit is q, k and v of one head; attention needs all q, then all k, then all v.
    for (int which = 0; which < 3; ++which) {
      for (int head = share.first; head < share.end; ++head) {
        runs.push_back({(3 * head + which) * need.interleaved_head_dim, need.interleaved_head_dim});
      }
    }
    return runs;
  }
  const int section = part.n / part.sections, unit = section / part.units;
  for (int i = 0; i < part.sections; ++i) {
    runs.push_back({i * section + share.first * unit, share.size() * unit});
  }
  return runs;
}

InputRange InputsOf(const LinearNeed& need, TensorRank rank) {
  if (!need.row_parallel) return {0, need.k};
  const Share share = ShareOf(need.k, rank);
  return {share.first, share.size()};
}

void AppendPieces(const LinearNeed& need, const LinearNeed::Part& part, TensorRank rank,
                  DType dtype, const void* data, std::vector<tensor::HostMatrix>& pieces) {
  const InputRange in = InputsOf(need, rank);
  const auto at = [&](int row, int column, int columns) {
    const size_t element =
        static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column);
    return static_cast<const uint8_t*>(data) + element * BytesOf(dtype);
  };
  for (const OutputRun& out : OutputsOf(need, part, rank)) {
    if (need.transposed) {
      pieces.push_back({at(in.first, out.first, part.n), dtype, in.count, out.count, part.n});
    } else {
      pieces.push_back({at(out.first, in.first, need.k), dtype, out.count, in.count, need.k});
    }
  }
}

void AppendBias(const LinearNeed& need, const LinearNeed::Part& part, TensorRank rank,
                const std::vector<float>& stored, std::vector<float>& bias) {
  for (const OutputRun& out : OutputsOf(need, part, rank)) {
    const auto first = stored.begin() + out.first;
    bias.insert(bias.end(), first, first + out.count);
  }
}

}  // namespace millrace::model
