#include "sim/cluster/machine.h"

#include <iterator>
#include <set>

namespace millrace::sim {

cost::BatchShape Sum(const cost::BatchShape& a, const cost::BatchShape& b) {
  return {.prefill_tokens = a.prefill_tokens + b.prefill_tokens,
          .prefill_tokens_squared = a.prefill_tokens_squared + b.prefill_tokens_squared,
          .prefill_sequences = a.prefill_sequences + b.prefill_sequences,
          .decode_sequences = a.decode_sequences + b.decode_sequences,
          .decode_context = a.decode_context + b.decode_context};
}

double StageMachine::BatchSeconds(std::span<const BatchPart> parts, Time begin) const {
  cost::BatchShape shape;
  for (const BatchPart& part : parts) shape = Sum(shape, part.shape);
  const double typical_s = options_.cost->Seconds(shape);
  if (options_.pace == nullptr) return typical_s;
  return options_.pace->Seconds(typical_s, shape.tokens(),
                                options_.pace_from_s + static_cast<double>(begin.ns) * 1e-9);
}

// Layer by layer: between two borders, the batch has the same parts.
double LayeredMachine::BatchSeconds(std::span<const BatchPart> parts, Time) const {
  std::set<int> borders;
  cost::BatchShape leaving;
  for (const BatchPart& part : parts) {
    borders.insert({part.layers.begin, part.layers.end});
    if (part.layers.end == options_.num_layers) leaving = Sum(leaving, part.shape);
  }
  double seconds = options_.overhead_s;
  if (options_.head != nullptr) seconds += options_.head->Seconds(leaving);
  for (auto at = borders.begin(); at != borders.end() && std::next(at) != borders.end(); ++at) {
    cost::BatchShape shape;
    for (const BatchPart& part : parts) {
      if (part.layers.begin <= *at && *at < part.layers.end) shape = Sum(shape, part.shape);
    }
    seconds += (*std::next(at) - *at) * options_.per_layer->Seconds(shape);
  }
  return seconds;
}

}  // namespace millrace::sim
