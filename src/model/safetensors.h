// The header of a safetensors file: 8 bytes of little-endian length, a JSON object with dtype,
// shape and byte range of every tensor, then the bytes. The file is not trusted: every rule of the
// format and every sum and product for overflow is checked before anything is used. Pure functions;
// any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "core/model_spec.h"

namespace millrace::model {

inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  // the format's own limit
inline constexpr size_t kSafetensorsTensorsMax = 1'000'000;
inline constexpr size_t kTensorNameBytesMax = 1024;
inline constexpr size_t kTensorRankMax = 8;

struct TensorEntry {
  std::string dtype;            // as named in the file, one of the format's
  std::vector<int64_t> shape;   // product checked against the byte range
  uint64_t begin = 0, end = 0;  // bytes, from the start of the file

  // The dtypes that Millrace computes with. Tensors of others may be in a file if nothing needs
  // them.
  std::optional<DType> compute_dtype() const;
};

struct SafetensorsHeader {
  std::unordered_map<std::string, TensorEntry> tensors;
};

// "[3, 4]".
std::string ShapeText(std::span<const int64_t> shape);

// Checks a file's whole header. The message names the tensor and the rule, not the file. kDataLoss:
// shorter than the header says (a broken download). kInvalidArgument: violates the format.
Result<SafetensorsHeader> ParseSafetensors(std::span<const uint8_t> file);

}  // namespace millrace::model
