#include "cluster/transfer/pull_messages.h"

#include <fmt/format.h>

#include "cluster/transfer/pull.pb.h"
#include "wire/checks.h"
#include "wire/shared_parts.h"

namespace millrace::cluster {
namespace {

using stage::KvBox;
using Ask = WeightRequest::Ask;

constexpr size_t kDigestDigits = 64;

Status CheckVersion(const char* what, uint32_t version) {
  if (version == kPullVersion) return OkStatus();
  return Unimplemented(
      fmt::format("the {} has format version {}, this worker reads version {}; run the same "
                  "release on every machine",
                  what, version, kPullVersion));
}

Status TakeDigest(const char* field, const std::string& from, std::string& out) {
  if (from.size() != kDigestDigits) {
    return InvalidArgument(
        fmt::format("{} must have {} digits, got {} bytes", field, kDigestDigits, from.size()));
  }
  out = from;
  return OkStatus();
}

// On the wire, activations that entered layer e are a box without layers, [e, e), and heads.
KvBox ToBox(const stage::TransferItem& item) {
  if (const auto* box = std::get_if<KvBox>(&item)) return *box;
  const auto& [layer, first_token, end_token] = std::get<stage::ActivationRange>(item);
  return {{layer, layer}, 0, 0, first_token, end_token};
}

void PutRequest(const KvRequest& from, proto::PullRequest& request) {
  const auto& [layers, first_head, end_head, first_token, end_token] = ToBox(from.item);
  proto::KvRequest& to = *request.mutable_kv();
  wire::ToProto(from.handle, *to.mutable_handle());
  to.set_first_layer(static_cast<uint32_t>(layers.begin));
  to.set_end_layer(static_cast<uint32_t>(layers.end));
  to.set_first_head(static_cast<uint32_t>(first_head));
  to.set_end_head(static_cast<uint32_t>(end_head));
  to.set_first_token(static_cast<uint32_t>(first_token));
  to.set_end_token(static_cast<uint32_t>(end_token));
}

Status TakeRequest(const proto::KvRequest& from, KvRequest& out) {
  MR_RETURN_WITHIN("handle", wire::FromProto(from.handle(), out.handle));
  KvBox box;
  MR_RETURN_IF_ERROR(wire::Take("first_layer", from.first_layer(), box.layers.begin));
  MR_RETURN_IF_ERROR(wire::Take("end_layer", from.end_layer(), box.layers.end));
  MR_RETURN_IF_ERROR(wire::Take("first_head", from.first_head(), box.first_head));
  MR_RETURN_IF_ERROR(wire::Take("end_head", from.end_head(), box.end_head));
  MR_RETURN_IF_ERROR(wire::Take("first_token", from.first_token(), box.first_token));
  MR_RETURN_IF_ERROR(wire::Take("end_token", from.end_token(), box.end_token));
  const bool kv = box.layers.end > box.layers.begin && box.end_head > box.first_head;
  const bool activations =
      box.layers.end == box.layers.begin && box.first_head == 0 && box.end_head == 0;
  if ((!kv && !activations) || box.end_token <= box.first_token) {
    return InvalidArgument(
        fmt::format("layers [{}, {}), heads [{}, {}), tokens [{}, {}) are no box", box.layers.begin,
                    box.layers.end, box.first_head, box.end_head, box.first_token, box.end_token));
  }
  if (kv) {
    out.item = box;
  } else {
    out.item = stage::ActivationRange{box.layers.end, box.first_token, box.end_token};
  }
  return OkStatus();
}

void PutRequest(const WeightRequest& from, proto::PullRequest& request) {
  const auto& [ask, layout, range] = from;
  const auto& [file, begin, end] = range;
  proto::WeightRequest& to = *request.mutable_weights();
  to.set_ask(static_cast<uint32_t>(ask));
  if (ask == Ask::kList) return;
  to.set_layout(layout);
  to.set_file(file);
  to.set_begin(begin);
  to.set_end(end);
}

Status TakeRequest(const proto::WeightRequest& from, WeightRequest& out) {
  uint32_t ask = 0;
  MR_RETURN_IF_ERROR(wire::Take("ask", from.ask(), ask, static_cast<uint32_t>(Ask::kList),
                                static_cast<uint32_t>(Ask::kDigests)));
  out.ask = static_cast<Ask>(ask);
  if (out.ask == Ask::kList) return OkStatus();
  MR_RETURN_IF_ERROR(TakeDigest("layout", from.layout(), out.layout));
  out.range = {from.file(), from.begin(), from.end()};
  if (from.begin() < from.end() && from.end() - from.begin() <= kWeightPartBytes) return OkStatus();
  return InvalidArgument(
      fmt::format("bytes [{}, {}), the limit is {}", from.begin(), from.end(), kWeightPartBytes));
}

void PutRequest(const ProbeRequest& from, proto::PullRequest& request) {
  const auto& [bytes] = from;
  request.mutable_probe()->set_bytes(bytes);
}

Status TakeRequest(const proto::ProbeRequest& from, ProbeRequest& out) {
  return wire::Take("bytes", from.bytes(), out.bytes, 1, kProbeBytesMax);
}

Result<PullRequest> TakeAny(const proto::PullRequest& from) {
  PullRequest request;
  switch (from.what_case()) {
    case proto::PullRequest::kKv:
      MR_RETURN_WITHIN("KV", TakeRequest(from.kv(), request.emplace<KvRequest>()));
      return request;
    case proto::PullRequest::kWeights:
      MR_RETURN_WITHIN("weights", TakeRequest(from.weights(), request.emplace<WeightRequest>()));
      return request;
    case proto::PullRequest::kProbe:
      MR_RETURN_WITHIN("probe", TakeRequest(from.probe(), request.emplace<ProbeRequest>()));
      return request;
    case proto::PullRequest::WHAT_NOT_SET: break;
  }
  return InvalidArgument("it asks for nothing that this worker knows");
}

}  // namespace

std::vector<std::byte> Encode(const PullRequest& request) {
  proto::PullRequest message;
  message.set_version(kPullVersion);
  std::visit([&message](const auto& one) { PutRequest(one, message); }, request);
  std::vector<std::byte> bytes(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes;
}

Result<PullRequest> DecodePullRequest(std::span<const std::byte> bytes) {
  proto::PullRequest message;
  if (bytes.size() > kPullRequestBytesMax ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidArgument(fmt::format("{} bytes that are not a pull request", bytes.size()));
  }
  MR_RETURN_IF_ERROR(CheckVersion("pull request", message.version()));
  Result<PullRequest> request = TakeAny(message);
  if (!request.ok()) return request.status().WithContext("malformed pull request");
  return request;
}

std::string Encode(const WeightList& list) {
  const auto& [fingerprint, layout, files] = list;
  proto::WeightList message;
  message.set_version(kPullVersion);
  message.set_fingerprint(fingerprint);
  message.set_layout(layout);
  for (const auto& [name, bytes] : files) {
    proto::WeightFile& file = *message.add_files();
    file.set_name(name);
    file.set_bytes(bytes);
  }
  return message.SerializeAsString();
}

Result<WeightList> DecodeWeightList(std::span<const std::byte> bytes) {
  proto::WeightList message;
  if (bytes.size() > kWeightListBytesMax ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidArgument(fmt::format("{} bytes that are not a weight list", bytes.size()));
  }
  MR_RETURN_IF_ERROR(CheckVersion("weight list", message.version()));
  constexpr const char* kMalformed = "malformed weight list";
  WeightList list;
  MR_RETURN_WITHIN(kMalformed, TakeDigest("fingerprint", message.fingerprint(), list.fingerprint));
  MR_RETURN_WITHIN(kMalformed, TakeDigest("layout", message.layout(), list.layout));
  for (const proto::WeightFile& file : message.files()) {
    list.files.push_back({file.name(), file.bytes()});
  }
  MR_RETURN_IF_ERROR(model::WeightStore::CheckList(list.files));
  return list;
}

}  // namespace millrace::cluster
