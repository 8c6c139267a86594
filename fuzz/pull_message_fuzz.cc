// Requests between workers for KV and weights, and the list of weight files in an answer; the first
// byte selects the kind. An accepted message survives a write and a read unchanged.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "cluster/transfer/kv_request.h"
#include "cluster/transfer/weight_messages.h"

namespace millrace::cluster {
namespace {

void TryList(std::string_view text) {
  const auto list = ParseWeightList(text);
  if (!list.ok()) return MR_CHECK(!list.status().message().empty());
  for (const model::WeightFile& file : list->files) {
    MR_CHECK(file.name.find('/') == std::string::npos) << file.name << " leads elsewhere";
    MR_CHECK(file.bytes <= model::kWeightFileBytesMax);
  }
  const auto again = ParseWeightList(ToText(*list));
  MR_CHECK(again.ok() && again->layout.size() == list->layout.size());
  MR_CHECK(std::ranges::equal(again->files, list->files, [](const auto& a, const auto& b) {
    return a.name == b.name && a.bytes == b.bytes;
  })) << "what was written is not read back";
}

void TryWeightRequest(std::span<const std::byte> bytes) {
  const auto request = DecodeWeightRequest(bytes);
  if (!request.ok()) return;
  MR_CHECK(IsWeightRequest(bytes));
  const model::WeightRange& range = request->range;
  MR_CHECK(range.end - range.begin <= kWeightPartBytes);
  if (request->ask == WeightRequest::Ask::kList) return;  // the other fields are ignored
  MR_CHECK(range.begin < range.end && std::ranges::equal(Encode(*request), bytes));
}

void TryKvRequest(std::span<const std::byte> bytes) {
  const auto request = DecodePullRequest(bytes);
  if (!request.ok()) return;
  const stage::KvBox& box = request->second;
  MR_CHECK(!IsWeightRequest(bytes) && box.layers.begin >= 0 && box.first_token >= 0);
  const bool rows = box.layers.size() == 0 && box.first_head == 0 && box.end_head == 0;
  MR_CHECK((rows || box.layers.begin < box.layers.end) && box.first_token < box.end_token);
  MR_CHECK(std::ranges::equal(EncodePullRequest(request->first, box), bytes));
}

}  // namespace
}  // namespace millrace::cluster

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::cluster;  // NOLINT
  if (size == 0) return 0;
  const std::span<const uint8_t> rest(data + 1, size - 1);
  switch (data[0] % 3) {
    case 0: TryList({reinterpret_cast<const char*>(rest.data()), rest.size()}); break;
    case 1: TryWeightRequest(std::as_bytes(rest)); break;
    default: TryKvRequest(std::as_bytes(rest));
  }
  return 0;
}
