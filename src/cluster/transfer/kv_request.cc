#include "cluster/transfer/kv_request.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

namespace millrace::cluster {
namespace {

using stage::KvBox;

constexpr uint32_t kRequestMagic = 0x4b56504c;  // "KVPL"

struct WireRequest {
  uint32_t magic = kRequestMagic;
  int32_t numbers[6] = {};  // layers, heads, tokens: begin and end of each
  uint32_t zero = 0;
  uint64_t pipeline = 0, generation = 0;
  uint8_t nonce[16] = {};
};
static_assert(sizeof(WireRequest) == 64);

}  // namespace

std::vector<std::byte> EncodePullRequest(const KvHandle& handle, const KvBox& box) {
  WireRequest wire;
  const int32_t numbers[6] = {box.layers.begin, box.layers.end,  box.first_head,
                              box.end_head,     box.first_token, box.end_token};
  std::memcpy(wire.numbers, numbers, sizeof numbers);
  wire.pipeline = handle.pipeline.value();
  wire.generation = handle.generation;
  std::memcpy(wire.nonce, handle.nonce.data(), sizeof wire.nonce);
  std::vector<std::byte> bytes(sizeof wire);
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

Result<std::pair<KvHandle, KvBox>> DecodePullRequest(std::span<const std::byte> bytes) {
  WireRequest wire;
  if (bytes.size() != sizeof wire) {
    return InvalidArgument(fmt::format("a pull request cannot have {} bytes", bytes.size()));
  }
  std::memcpy(&wire, bytes.data(), sizeof wire);
  const int32_t* n = wire.numbers;
  const bool kv = n[1] > n[0] && n[3] > n[2];
  const bool activations = n[1] == n[0] && n[2] == 0 && n[3] == 0;
  if (wire.magic != kRequestMagic || wire.zero != 0 || n[0] < 0 || n[2] < 0 || n[4] < 0 ||
      n[5] <= n[4] || (!kv && !activations)) {
    return InvalidArgument("the pull request has no valid box");
  }
  KvHandle handle{.pipeline = PipelineId(wire.pipeline), .generation = wire.generation};
  std::memcpy(handle.nonce.data(), wire.nonce, sizeof wire.nonce);
  return std::pair(handle, KvBox{{n[0], n[1]}, n[2], n[3], n[4], n[5]});
}

}  // namespace millrace::cluster
