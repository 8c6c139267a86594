#include "plan/spot/profile.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "base/json.h"

namespace millrace::plan::spot {
namespace {

constexpr double kMillisMax = 1e9;

Result<double> Number(const Json& object, const std::string& key, double max) {
  const auto it = object.find(key);
  if (it == object.end()) return InvalidArgument(fmt::format("profile: \"{}\" is missing", key));
  if (!it->is_number()) {
    return InvalidArgument(fmt::format("profile: \"{}\" must be a number", key));
  }
  const double value = it->get<double>();
  if (!std::isfinite(value) || value < 0 || value > max) {
    return InvalidArgument(
        fmt::format("profile: \"{}\" must be in [0, {:g}], got {:g}", key, max, value));
  }
  return value;
}

Result<int> Whole(const Json& object, const std::string& key, int min, int max) {
  MR_ASSIGN_OR_RETURN(const double value, Number(object, key, 2e9));
  if (value != std::floor(value) || value < min || value > max) {
    return InvalidArgument(fmt::format(
        "profile: \"{}\" must be a whole number in [{}, {}], got {:g}", key, min, max, value));
  }
  return static_cast<int>(value);
}

// The power of two after `prefix` in a key ("tp-4", "bsz-2"); none if the key has another prefix.
Result<std::optional<int>> KeyedPower(const std::string& key, std::string_view prefix) {
  if (!key.starts_with(prefix)) return std::optional<int>();
  int value = 0;
  const std::string digits = key.substr(prefix.size());
  for (const char c : digits) {
    if (c < '0' || c > '9' || value > 1 << Profile::kPowersMax) value = -1;
    if (value < 0) break;
    value = value * 10 + (c - '0');
  }
  const std::optional<int> log = Log2Exact(value);
  if (digits.empty() || !log.has_value() || *log >= Profile::kPowersMax) {
    return InvalidArgument(fmt::format("profile: \"{}\" must be {} and a power of two up to {}",
                                       key, prefix, 1 << (Profile::kPowersMax - 1)));
  }
  return std::optional<int>(value);
}

Status ReadEmbedding(const Json& root, Profile& profile) {
  const auto it = root.find("embed");
  if (it == root.end() || !it->is_array() || it->empty() || it->size() > Profile::kPowersMax) {
    return InvalidArgument(fmt::format("profile: \"embed\" must be a list of 1 to {} times",
                                       int{Profile::kPowersMax}));
  }
  for (const Json& time : *it) {
    MR_ASSIGN_OR_RETURN(const double ms, Number(Json{{"embed", time}}, "embed", kMillisMax));
    profile.embed_ms.push_back(ms);
  }
  return OkStatus();
}

Status ReadRow(int tensor, const Json& row, Profile& profile) {
  if (!row.is_object()) {
    return InvalidArgument(fmt::format("profile: \"tp-{}\" must be an object", tensor));
  }
  for (const auto& [key, cell] : row.items()) {
    MR_ASSIGN_OR_RETURN(const std::optional<int> batch, KeyedPower(key, "bsz-"));
    if (!batch.has_value() || !cell.is_object()) {
      return InvalidArgument(
          fmt::format("profile: keys of \"tp-{}\" must be bsz-1, bsz-2, ...", tensor));
    }
    LayerTime time;
    MR_ASSIGN_OR_RETURN(time.prefill_ms, Number(cell, "init", kMillisMax));
    MR_ASSIGN_OR_RETURN(time.decode_ms, Number(cell, "incr", kMillisMax));
    if (time.prefill_ms <= 0 || time.decode_ms <= 0) {
      return InvalidArgument(
          fmt::format("profile: tp-{} bsz-{}: times must be above zero", tensor, *batch));
    }
    profile.Set(tensor, *batch, time);
  }
  return OkStatus();
}

Status ReadScalars(const Json& root, Profile& p) {
  if (const auto name = root.find("name"); name != root.end() && name->is_string()) {
    p.name = name->get<std::string>();
  }
  MR_ASSIGN_OR_RETURN(p.layers, Whole(root, "layer_num", 1, Profile::kLayersMax));
  MR_ASSIGN_OR_RETURN(p.padded_layers,
                      Whole(root, "padded_layer_num", p.layers, 2 * Profile::kLayersMax));
  MR_ASSIGN_OR_RETURN(p.hidden_size, Whole(root, "hidden_size", 1, 1 << 20));
  MR_ASSIGN_OR_RETURN(p.tensor_max, Whole(root, "max_tp", 1, 1 << (Profile::kPowersMax - 1)));
  MR_ASSIGN_OR_RETURN(p.overhead_factor, Number(root, "final_fix_factor", 1000));
  if (p.overhead_factor <= 0) {
    return InvalidArgument("profile: \"final_fix_factor\" must be above zero");
  }
  MR_ASSIGN_OR_RETURN(p.stage_prefill_ms, Number(root, "pp_init_comm", kMillisMax));
  MR_ASSIGN_OR_RETURN(p.stage_decode_ms, Number(root, "pp_incr_comm", kMillisMax));
  return OkStatus();
}

}  // namespace

std::string ToString(const ParallelConfig& c) {
  return fmt::format("({},{},{},{})", c.data, c.pipeline, c.tensor, c.batch);
}

std::optional<int> Log2Exact(int value) {
  if (value <= 0 || !std::has_single_bit(static_cast<unsigned>(value))) return std::nullopt;
  return std::countr_zero(static_cast<unsigned>(value));
}

const std::optional<LayerTime>& Profile::At(int tensor, int micro_batch) const {
  static const std::optional<LayerTime> kNone;
  const auto row = Log2Exact(tensor), column = Log2Exact(micro_batch);
  MR_CHECK(row.has_value() && column.has_value()) << tensor << " x " << micro_batch;
  if (*row >= kPowersMax || *column >= kPowersMax) return kNone;
  return cells_[*row][*column];
}

void Profile::Set(int tensor, int micro_batch, LayerTime time) {
  const auto row = Log2Exact(tensor), column = Log2Exact(micro_batch);
  MR_CHECK(row.has_value() && column.has_value() && *row < kPowersMax && *column < kPowersMax)
      << tensor << " x " << micro_batch;
  cells_[*row][*column] = time;
}

Result<Profile> ParseProfile(std::string_view json) {
  const Result<Json> parsed = ParseJson(json);
  if (!parsed.ok()) return parsed.status().WithContext("profile");
  const Json& root = *parsed;
  if (!root.is_object()) return InvalidArgument("profile: must be a JSON object");
  Profile profile;
  MR_RETURN_IF_ERROR(ReadScalars(root, profile));
  MR_RETURN_IF_ERROR(ReadEmbedding(root, profile));
  bool any = false;
  for (const auto& [key, row] : root.items()) {
    MR_ASSIGN_OR_RETURN(const std::optional<int> tensor, KeyedPower(key, "tp-"));
    if (!tensor.has_value()) continue;
    MR_RETURN_IF_ERROR(ReadRow(*tensor, row, profile));
    any = any || !row.empty();
  }
  if (!any) return InvalidArgument("profile: no \"tp-1\", \"tp-2\", ... with measured times");
  return profile;
}

std::optional<ExecutionTime> Execution(const Profile& profile, const ParallelConfig& c) {
  const std::optional<int> log_batch = Log2Exact(c.batch);
  MR_CHECK(log_batch.has_value() && c.pipeline > 0 && c.batch % c.prefill_micro_batches == 0 &&
           c.batch % c.decode_micro_batches == 0)
      << ToString(c);
  const auto& prefill = profile.At(c.tensor, c.batch / c.prefill_micro_batches);
  const auto& decode = profile.At(c.tensor, c.batch / c.decode_micro_batches);
  if (!prefill.has_value() || !decode.has_value() ||
      *log_batch >= static_cast<int>(profile.embed_ms.size())) {
    return std::nullopt;
  }
  const int p = c.pipeline, m1 = c.prefill_micro_batches, m2 = c.decode_micro_batches;
  const int layers = (profile.layers + p - 1) / p;
  ExecutionTime time;
  time.prefill_ms =
      prefill->prefill_ms * layers * (p + m1 - 1) / m1 + profile.stage_prefill_ms / m1 * (p - 1);
  time.step_ms = decode->decode_ms * layers * (p + m2 - 1) + profile.stage_decode_ms / m2 * (p - 1);
  time.fixed_ms = 2 * profile.embed_ms[*log_batch];
  time.prefill_ms *= profile.overhead_factor;
  time.step_ms *= profile.overhead_factor;
  time.fixed_ms *= profile.overhead_factor;
  return time;
}

double Throughput(const ParallelConfig& config, double execution_ms) {
  return config.data * config.batch / execution_ms * 1000;
}

}  // namespace millrace::plan::spot
