// Requests between workers for KV and weights, and the list of weight files in an answer; the first
// byte selects the kind. An accepted message has the same values after a write and a read.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "base/check.h"
#include "cluster/transfer/pull_messages.h"
#include "wire/testing/same.h"

namespace millrace::cluster {
namespace {

void TryList(std::span<const std::byte> bytes) {
  const auto list = DecodeWeightList(bytes);
  if (!list.ok()) return MR_CHECK(!list.status().message().empty());
  for (const model::WeightFile& file : list->files) {
    MR_CHECK(file.name.find('/') == std::string::npos) << file.name << " leads elsewhere";
    MR_CHECK(file.bytes <= model::kWeightFileBytesMax);
  }
  const std::string written = Encode(*list);
  const auto again = DecodeWeightList(std::as_bytes(std::span(written)));
  MR_CHECK(again.ok() && wire::testing::Same(*again, *list)) << "what was written is not read back";
}

void Check(const WeightRequest& request) {
  const model::WeightRange& range = request.range;
  MR_CHECK(range.end - range.begin <= kWeightPartBytes);
  MR_CHECK(request.ask == WeightRequest::Ask::kList || range.begin < range.end);
}

void Check(const stage::KvBox& box) {
  MR_CHECK(box.layers.begin >= 0 && box.first_head >= 0 && box.first_token >= 0);
  MR_CHECK(box.layers.begin < box.layers.end && box.first_head < box.end_head);
  MR_CHECK(box.first_token < box.end_token);
}

void Check(const stage::ActivationRange& range) {
  MR_CHECK(range.layer >= 0 && range.first_token >= 0 && range.first_token < range.end_token);
}

void Check(const KvRequest& request) {
  std::visit([](const auto& item) { Check(item); }, request.item);
}

void Check(const ProbeRequest& request) {
  MR_CHECK(request.bytes > 0 && request.bytes <= kProbeBytesMax);
}

void TryRequest(std::span<const std::byte> bytes) {
  const auto request = DecodePullRequest(bytes);
  if (!request.ok()) return MR_CHECK(!request.status().message().empty());
  std::visit([](const auto& one) { Check(one); }, *request);
  const auto again = DecodePullRequest(Encode(*request));
  MR_CHECK(again.ok() && wire::testing::Same(*again, *request))
      << "what was written is not read back";
}

}  // namespace
}  // namespace millrace::cluster

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::cluster;  // NOLINT
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  data[0] % 2 == 0 ? TryList(bytes) : TryRequest(bytes);
  return 0;
}
