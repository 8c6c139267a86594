// Messages with which workers pull weights from each other (docs/formats/data-plane.md): the list
// of files, the digests of their contents, and ranges of them. Both sides are untrusted. Plain
// values and pure functions; any thread.
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

inline constexpr size_t kWeightPartBytes = size_t{1} << 20;  // the most in one answer
inline constexpr size_t kWeightListBytesMax = size_t{2} << 20;

struct WeightRequest {
  enum class Ask : uint32_t { kList = 1, kRange = 2, kDigests = 3 };
  Ask ask = Ask::kList;
  std::string layout;        // WeightList::layout; unused by kList
  model::WeightRange range;  // for kDigests a range of the digests; `file` is ignored
};
std::vector<std::byte> Encode(const WeightRequest& request);
// Checks only the first bytes.
bool IsWeightRequest(std::span<const std::byte> bytes);
// kInvalidArgument: not a request, or a range that is empty or larger than a part.
Result<WeightRequest> DecodeWeightRequest(std::span<const std::byte> bytes);

struct WeightList {
  std::string fingerprint;  // of the model
  std::string layout;       // WeightStore::Layout of the files
  std::vector<model::WeightFile> files;
};
std::string ToText(const WeightList& list);
// kInvalidArgument: not a list, or a list with files that a model cannot have.
Result<WeightList> ParseWeightList(std::string_view text);

}  // namespace millrace::cluster
