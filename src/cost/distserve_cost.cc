#include "cost/distserve_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

namespace millrace::cost {
namespace {

constexpr int kTensorParallelMax = 1024;
constexpr int kThresholdMax = 1 << 20;
// Coefficients are milliseconds per unit; a value of an hour is certainly wrong.
constexpr double kCoefficientMax = 3.6e6;

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

std::string_view LastPart(std::string_view model) {
  const size_t slash = model.rfind('/');
  return slash == std::string_view::npos ? model : model.substr(slash + 1);
}

Status ReadThree(const Json& set, const char* key, const std::string& where,
                 std::array<double, 3>& out) {
  const auto it = set.find(key);
  if (it == set.end() || !it->is_array() || it->size() != out.size()) {
    return InvalidArgument(fmt::format("{}: \"{}\" must be an array of 3 numbers", where, key));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const Json& value = (*it)[i];
    if (!value.is_number() || !(std::abs(value.get<double>()) <= kCoefficientMax)) {
      return InvalidArgument(fmt::format("{}: \"{}\"[{}] must be a number within {:.0f} ms", where,
                                         key, i, kCoefficientMax));
    }
    out[i] = value.get<double>();
  }
  return {};
}

Result<DistServeCoefficients> ReadSet(const Json& set, const std::string& where) {
  if (!set.is_object()) return InvalidArgument(where + ": must be an object");
  DistServeCoefficients c;
  const auto threshold = set.find("decoding_large_small_bs_threshold");
  if (threshold != set.end()) {
    if (!threshold->is_number_integer() || *threshold < 1 || *threshold > kThresholdMax) {
      return InvalidArgument(fmt::format(
          "{}: \"decoding_large_small_bs_threshold\" must be in [1, {}]", where, kThresholdMax));
    }
    c.decode_threshold = threshold->get<int>();
  }
  MR_RETURN_IF_ERROR(ReadThree(set, "prefill", where, c.prefill));
  MR_RETURN_IF_ERROR(ReadThree(set, "decoding_smallbs", where, c.decode_small));
  MR_RETURN_IF_ERROR(ReadThree(set, "decoding_largebs", where, c.decode_large));
  return c;
}

}  // namespace

Result<DistServeProfile> DistServeProfile::Parse(std::string_view text, std::string_view file) {
  if (text.size() > kBytesMax) {
    return InvalidArgument(
        fmt::format("{}: {} bytes, the limit is {}", file, text.size(), kBytesMax));
  }
  auto json = ParseJson(text);
  if (!json.ok()) return json.status().WithContext(file);
  if (!json->is_object()) return InvalidArgument(fmt::format("{}: must be an object", file));
  DistServeProfile profile;
  for (const auto& [model, degrees] : json->items()) {
    if (!degrees.is_object()) {
      return InvalidArgument(
          fmt::format("{}: \"{}\" must be an object of TP degrees", file, Printable(model)));
    }
    for (const auto& [degree, set] : degrees.items()) {
      const std::string where =
          fmt::format("{}: \"{}\", TP \"{}\"", file, Printable(model), Printable(degree));
      int tp = 0;
      const auto [end, error] = std::from_chars(degree.data(), degree.data() + degree.size(), tp);
      if (error != std::errc() || end != degree.data() + degree.size() || tp < 1 ||
          tp > kTensorParallelMax) {
        return InvalidArgument(
            fmt::format("{}: the TP degree must be in [1, {}]", where, kTensorParallelMax));
      }
      MR_ASSIGN_OR_RETURN(profile.sets_[std::make_pair(model, tp)], ReadSet(set, where));
    }
  }
  if (profile.sets_.empty()) return InvalidArgument(fmt::format("{}: no coefficients", file));
  return profile;
}

Result<DistServeProfile> DistServeProfile::Load(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kBytesMax));
  return Parse(text, path);
}

Result<DistServeCoefficients> DistServeProfile::Find(std::string_view model,
                                                     int tensor_parallel) const {
  std::string known;
  for (const auto& [key, set] : sets_) {
    const auto& [name, tp] = key;
    const bool same = name == model || LowerCase(LastPart(name)) == LowerCase(LastPart(model));
    if (same && tp == tensor_parallel) return set;
    known += fmt::format("{}{} TP{}", known.empty() ? "" : ", ", name, tp);
  }
  return NotFound(fmt::format("no coefficients for {} with TP {}; there are {}", model,
                              tensor_parallel, known));
}

std::vector<std::pair<std::string, int>> DistServeProfile::Keys() const {
  std::vector<std::pair<std::string, int>> keys;
  for (const auto& [key, set] : sets_) keys.push_back(key);
  return keys;
}

DistServeCost::DistServeCost(const DistServeCoefficients& coefficients, DistServeStage stage)
    : coefficients_(coefficients), stage_(stage) {
  MR_CHECK(stage_.pipeline_parallel >= 1) << "pipeline_parallel " << stage_.pipeline_parallel;
}

double DistServeCost::WholeModelMs(const BatchShape& batch) const {
  const auto& decode = batch.decode_sequences < coefficients_.decode_threshold
                           ? coefficients_.decode_small
                           : coefficients_.decode_large;
  const double context = static_cast<double>(batch.decode_context);
  const double decode_ms = decode[0] + decode[1] * context + decode[2] * batch.decode_sequences;
  if (batch.prefill_sequences == 0) return decode_ms;
  const auto& prefill = coefficients_.prefill;
  const double prefill_ms = prefill[0] + prefill[1] * static_cast<double>(batch.tokens()) +
                            prefill[2] * static_cast<double>(batch.prefill_tokens_squared);
  if (batch.decode_sequences == 0) return prefill_ms;
  return std::max(decode_ms, prefill_ms + decode[1] * context);
}

double DistServeCost::Seconds(const BatchShape& batch) const {
  if (batch.empty()) return 0;
  double ms = WholeModelMs(batch) / stage_.pipeline_parallel;
  if (batch.prefill_sequences > 0) ms += stage_.prefill_ms_per_stage * stage_.pipeline_parallel;
  if (stage_.first) {
    // The released simulator counts a decode's context without its new token.
    const int64_t tokens =
        batch.prefill_tokens + batch.decode_context - int64_t{batch.decode_sequences};
    ms += stage_.step_ms + stage_.step_ms_per_token * static_cast<double>(tokens);
  }
  return std::max(ms, 0.0) * 1e-3;
}

}  // namespace millrace::cost
