// The latency model of one language model on one kind of machine, as SpotServe measures it: the
// time of one layer, for prefill and for one decode step, by tensor degree and micro-batch size
// (SpotServe, section 3.2; the formula is that of the released solver, term by term).
//
// Values, immutable after reading; any thread.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::plan::spot {

// C = (D, P, M, B), and the number of micro-batches of a batch for prefill and for decode.
struct ParallelConfig {
  int data = 0;      // D: equal pipelines
  int pipeline = 0;  // P: stages per pipeline
  int tensor = 0;    // M: devices that share a stage
  int batch = 0;     // B: requests that a pipeline runs together
  int prefill_micro_batches = 1;
  int decode_micro_batches = 1;

  int devices() const { return data * pipeline * tensor; }
  friend auto operator<=>(const ParallelConfig&, const ParallelConfig&) = default;
};

std::string ToString(const ParallelConfig& config);  // "(2,3,4,4)"

struct LayerTime {
  double prefill_ms = 0;
  double decode_ms = 0;
};

class Profile {
 public:
  static constexpr int kPowersMax = 8;  // tensor degrees and micro-batches 1, 2, 4 ... 128
  static constexpr int kLayersMax = 1024;

  std::string name;
  int layers = 0;
  int padded_layers = 0;  // P must divide this
  int hidden_size = 0;
  int tensor_max = 0;
  double overhead_factor = 1;    // measured over modelled, applied to everything
  double stage_prefill_ms = 0;   // one hop between stages
  double stage_decode_ms = 0;    //
  std::vector<double> embed_ms;  // by log2 of the batch

  // The measured cell; none if not measured. Both must be powers of two.
  const std::optional<LayerTime>& At(int tensor, int micro_batch) const;
  void Set(int tensor, int micro_batch, LayerTime time);

 private:
  using Row = std::array<std::optional<LayerTime>, kPowersMax>;
  std::array<Row, kPowersMax> cells_;
};

// Reads the JSON of SpotServe's profiles (shared data, spot/spotserve/*_profile.json).
// kInvalidArgument names the field and its requirements.
Result<Profile> ParseProfile(std::string_view json);

// The time of one batch on one pipeline of a configuration.
struct ExecutionTime {
  double prefill_ms = 0;  // t1: the whole batch's prompts
  double step_ms = 0;     // t2: one token for each sequence of the batch
  double fixed_ms = 0;    // embedding and head
  double Total(int output_tokens) const { return prefill_ms + step_ms * output_tokens + fixed_ms; }
};

// l_exe without its S_out; none if the profile has no such cell. Ignores `config.data`.
std::optional<ExecutionTime> Execution(const Profile& profile, const ParallelConfig& config);

// phi: requests per second of the whole configuration: B per l_exe and pipeline.
double Throughput(const ParallelConfig& config, double execution_ms);

// The exponent of a power of two; none for other numbers.
std::optional<int> Log2Exact(int value);

}  // namespace millrace::plan::spot
