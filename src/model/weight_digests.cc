#include "model/weight_digests.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/sha256.h"
#include "base/units.h"

namespace millrace::model {
namespace {

Sha256::Digest DigestOf(std::span<const std::byte> chunk, bool whole) {
  Sha256 digest;
  digest.Add(chunk.data(), whole ? chunk.size() : std::min(chunk.size(), kDigestSampleBytes));
  return digest.Take();
}

}  // namespace

Result<WeightDigests> WeightDigests::OfFolder(const std::string& folder, int64_t whole_bytes) {
  MR_ASSIGN_OR_RETURN(const OpenedModel opened, OpenedModel::Open(folder));
  return Of(opened, true, whole_bytes);
}

Result<WeightDigests> WeightDigests::OfHeads(const std::string& folder) {
  MR_ASSIGN_OR_RETURN(const OpenedModel opened, OpenedModel::Open(folder));
  return Of(opened, false, kDigestWholeBytes);
}

Result<WeightDigests> WeightDigests::Of(const OpenedModel& opened, bool read, int64_t whole_bytes) {
  WeightPlan plan(&opened.files);
  opened.decoder->Declare({0, opened.decoder->dims().spec.num_layers}, plan);
  MR_RETURN_IF_ERROR(plan.Resolve());
  WeightDigests of;
  of.whole_ = plan.stored_bytes() <= whole_bytes;
  Sha256 heads;
  heads.AddText(opened.config.dump());
  for (const WeightNeed& need : plan.Needs()) {
    const std::optional<StoredTensor> tensor = opened.files.Find(need.name);
    MR_CHECK(tensor.has_value()) << need.name << " must have been resolved";
    heads.AddText(need.name);
    heads.AddText(tensor->entry->dtype);
    for (int64_t extent : need.shape) heads.Add(&extent, sizeof extent);
    const uint64_t bytes = tensor->bytes();
    heads.Add(&bytes, sizeof bytes);
    const size_t first = of.chunks_.size();
    MR_RETURN_IF_ERROR(of.AddTensor(need, *tensor));
    for (size_t i = first; read && i < of.chunks_.size(); ++i) {
      const Chunk& chunk = of.chunks_[i];
      of.AddDigest(
          std::as_bytes(tensor->file->bytes().subspan(chunk.begin, chunk.end - chunk.begin)));
    }
  }
  of.heads_ = Hex(heads.Take());
  if (read) of.SetFingerprint();
  return of;
}

Status WeightDigests::AddTensor(const WeightNeed& need, const StoredTensor& tensor) {
  const auto path = std::ranges::find(paths_, *tensor.path);
  const auto at = static_cast<size_t>(path - paths_.begin());
  if (path == paths_.end()) paths_.push_back(*tensor.path);
  const uint64_t end = tensor.entry->end;
  for (uint64_t begin = tensor.entry->begin; begin < end; begin += kDigestChunkBytes) {
    if (chunks_.size() == kDigestChunksMax) {
      return InvalidArgument(
          fmt::format("{}: with tensor `{}` the weights exceed {}", *tensor.path, need.name,
                      FormatBytes(int64_t{kDigestChunksMax * kDigestChunkBytes})));
    }
    chunks_.push_back({at, begin, std::min<uint64_t>(begin + kDigestChunkBytes, end)});
  }
  return OkStatus();
}

void WeightDigests::AddDigest(std::span<const std::byte> chunk) {
  const Sha256::Digest digest = DigestOf(chunk, whole_);
  const auto bytes = std::as_bytes(std::span(digest));
  digests_.insert(digests_.end(), bytes.begin(), bytes.end());
}

Status WeightDigests::Take(std::vector<std::byte> digests) {
  if (digests.size() != chunks_.size() * kDigestBytes) {
    return InvalidArgument(fmt::format("{} bytes of digests do not match {} chunks of weights",
                                       digests.size(), chunks_.size()));
  }
  digests_ = std::move(digests);
  SetFingerprint();
  return OkStatus();
}

void WeightDigests::SetFingerprint() {
  Sha256 all;
  all.AddText(heads_);
  all.Add(digests_.data(), digests_.size());
  fingerprint_ = Hex(all.Take());
}

FileRun WeightDigests::RunOf(size_t chunk) const {
  const Chunk& at = chunks_[chunk];
  return {paths_[at.path], at.begin, at.end};
}

bool WeightDigests::Matches(size_t chunk, std::span<const std::byte> bytes) const {
  const Chunk& at = chunks_[chunk];
  if (bytes.size() != at.end - at.begin) return false;
  const Sha256::Digest digest = DigestOf(bytes, whole_);
  return std::ranges::equal(std::as_bytes(std::span(digest)),
                            digests().subspan(chunk * kDigestBytes, kDigestBytes));
}

}  // namespace millrace::model
