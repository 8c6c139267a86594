// What workers ask each other for weights (docs/formats/data-plane.md): which files there are, the
// digests of what is in them, ranges of them. Whoever asks and whoever answers is not trusted.
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/weight_store.h"

namespace millrace::cluster {

inline constexpr size_t kWeightPartBytes = size_t{1} << 20;  // of one answer at most
inline constexpr size_t kWeightListBytesMax = size_t{2} << 20;

struct WeightRequest {
  enum class Ask : uint32_t { kList = 1, kRange = 2, kDigests = 3 };
  Ask ask = Ask::kList;
  // As of a list, but for that.
  std::string layout;
  model::WeightRange range;  // of the digests, where `file` does not count
};
std::vector<std::byte> Encode(const WeightRequest& request);
// By its first bytes.
bool IsWeightRequest(std::span<const std::byte> bytes);
// kInvalidArgument: none, or more than a part.
Result<WeightRequest> DecodeWeightRequest(std::span<const std::byte> bytes);

struct WeightList {
  std::string fingerprint;  // of the model
  std::string layout;       // WeightStore::Layout of the files
  std::vector<model::WeightFile> files;
};
std::string ToText(const WeightList& list);
// kInvalidArgument: no list, or of files that no model has.
Result<WeightList> ParseWeightList(std::string_view text);

}  // namespace millrace::cluster
