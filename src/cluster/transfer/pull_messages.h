// What one worker asks of another over the data plane (docs/formats/data-plane.md): a part of
// exported KV, the list of weight files, a range of one of them, or the digests of their contents.
// Both sides are untrusted. Plain values and pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "core/worker_messages.h"
#include "model/weight_store.h"
#include "stage/stage.h"

namespace millrace::cluster {

// Of requests and weight lists. Another version is refused, with both versions and the cure.
inline constexpr uint32_t kPullVersion = 1;
inline constexpr size_t kPullRequestBytesMax = 512;
inline constexpr size_t kWeightPartBytes = size_t{1} << 20;  // the most in one answer
inline constexpr size_t kProbeBytesMax = size_t{8} << 20;    // likewise
inline constexpr size_t kWeightListBytesMax = size_t{2} << 20;

struct KvRequest {
  KvHandle handle;
  stage::TransferItem item;
};
struct WeightRequest {
  enum class Ask : uint32_t { kList = 1, kRange = 2, kDigests = 3 };
  Ask ask = Ask::kList;
  std::string layout;        // WeightList::layout; unused by kList
  model::WeightRange range;  // for kDigests a range of the digests; `file` is ignored
};
// Bytes of no meaning, for a probe of the link.
struct ProbeRequest {
  uint32_t bytes = 0;
};
using PullRequest = std::variant<KvRequest, WeightRequest, ProbeRequest>;
std::vector<std::byte> Encode(const PullRequest& request);
// kInvalidArgument: not a request, an empty item, or a range that is empty or larger than a part,
// or a probe of more bytes than kProbeBytesMax or none.
// kUnimplemented: of another version.
Result<PullRequest> DecodePullRequest(std::span<const std::byte> bytes);

struct WeightList {
  std::string fingerprint;  // of the model
  std::string layout;       // WeightStore::Layout of the files
  std::vector<model::WeightFile> files;
};
std::string Encode(const WeightList& list);
// kInvalidArgument: not a list, or a list with files that a model cannot have. kUnimplemented: of
// another version.
Result<WeightList> DecodeWeightList(std::span<const std::byte> bytes);

}  // namespace millrace::cluster
