#include "cluster/transfer/weight_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/json.h"

namespace millrace::cluster {
namespace {

constexpr uint32_t kWeightRequestMagic = 0x54574c50;  // "PLWT"
constexpr size_t kLayoutDigits = 64;

struct WireWeightRequest {
  uint32_t magic = kWeightRequestMagic;
  uint32_t ask = 0;
  char layout[kLayoutDigits] = {};
  uint64_t file = 0, begin = 0, end = 0;
};
static_assert(sizeof(WireWeightRequest) == 96);

bool IsDigest(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() &&
         found->get_ref<const std::string&>().size() == kLayoutDigits;
}

}  // namespace

std::vector<std::byte> Encode(const WeightRequest& request) {
  WireWeightRequest wire{.ask = static_cast<uint32_t>(request.ask),
                         .file = request.range.file,
                         .begin = request.range.begin,
                         .end = request.range.end};
  std::memcpy(wire.layout, request.layout.data(),
              std::min(request.layout.size(), sizeof wire.layout));
  std::vector<std::byte> bytes(sizeof wire);
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

bool IsWeightRequest(std::span<const std::byte> bytes) {
  uint32_t magic = 0;
  if (bytes.size() < sizeof magic) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic == kWeightRequestMagic;
}

Result<WeightRequest> DecodeWeightRequest(std::span<const std::byte> bytes) {
  WireWeightRequest wire;
  if (bytes.size() != sizeof wire) {
    return InvalidArgument(fmt::format("malformed weight request: {} bytes", bytes.size()));
  }
  std::memcpy(&wire, bytes.data(), sizeof wire);
  WeightRequest request;
  request.ask = static_cast<WeightRequest::Ask>(wire.ask);
  using enum WeightRequest::Ask;
  if (wire.magic != kWeightRequestMagic ||
      (request.ask != kList && request.ask != kRange && request.ask != kDigests)) {
    return InvalidArgument("malformed weight request: unknown kind");
  }
  if (request.ask == kList) return request;
  if (wire.begin >= wire.end || wire.end - wire.begin > kWeightPartBytes) {
    return InvalidArgument(fmt::format("malformed weight request: bytes [{}, {}), the limit is {}",
                                       wire.begin, wire.end, kWeightPartBytes));
  }
  request.layout.assign(wire.layout, sizeof wire.layout);
  request.range = {wire.file, wire.begin, wire.end};
  return request;
}

std::string ToText(const WeightList& list) {
  Json files = Json::array();
  for (const model::WeightFile& file : list.files) files.push_back({file.name, file.bytes});
  return DumpJson({{"fingerprint", list.fingerprint}, {"layout", list.layout}, {"files", files}});
}

Result<WeightList> ParseWeightList(std::string_view text) {
  MR_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
  if (!json.is_object() || !IsDigest(json, "fingerprint") || !IsDigest(json, "layout") ||
      !json.contains("files") || !json["files"].is_array()) {
    return InvalidArgument("malformed weight list");
  }
  WeightList list{json["fingerprint"], json["layout"], {}};
  for (const Json& file : json["files"]) {
    if (!file.is_array() || file.size() != 2 || !file[0].is_string() ||
        !file[1].is_number_unsigned()) {
      return InvalidArgument("malformed weight list: an entry is not a file name with a size");
    }
    list.files.push_back({file[0], file[1]});
  }
  MR_RETURN_IF_ERROR(model::WeightStore::CheckList(list.files));
  return list;
}

}  // namespace millrace::cluster
