#include "net/data/remote_read.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "net/data/crc32c.h"
#include "net/data/little_endian.h"

namespace millrace::net {
namespace {

constexpr size_t kWindowBytes = 1 << 20;
constexpr size_t kWindowReads = 256;
constexpr size_t kSegmentBytes = 24;  // on the wire

void Append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  MR_CHECK(bytes.size() <= UINT16_MAX);
  const size_t at = out.size();
  out.resize(at + sizeof(uint16_t));
  StoreLe(&out[at], static_cast<uint16_t>(bytes.size()));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Removes from the front of `raw` what Append wrote.
Result<std::vector<std::byte>> Take(std::span<const std::byte>& raw) {
  constexpr size_t kHead = sizeof(uint16_t);
  if (raw.size() < kHead || raw.size() - kHead < LoadLe<uint16_t>(raw.data())) {
    return InvalidArgument("a truncated offer");
  }
  const auto bytes = raw.subspan(kHead, LoadLe<uint16_t>(raw.data()));
  raw = raw.subspan(kHead + bytes.size());
  return std::vector(bytes.begin(), bytes.end());
}

}  // namespace

std::vector<std::byte> EncodeOffer(const RemoteOffer& offer) {
  std::vector<std::byte> raw;
  Append(raw, offer.peer);
  for (const auto& key : offer.keys) Append(raw, key);
  Append(raw, {});
  size_t at = raw.size();
  raw.resize(at + offer.segments.size() * kSegmentBytes);
  for (const RemoteSegment& s : offer.segments) {
    StoreLe(&raw[at], s.key);
    StoreLe(&raw[at + 8], s.address);
    StoreLe(&raw[at + 16], s.bytes);
    at += kSegmentBytes;
  }
  return raw;
}

Result<RemoteOffer> DecodeOffer(std::span<const std::byte> raw, uint64_t bytes) {
  RemoteOffer offer;
  MR_ASSIGN_OR_RETURN(offer.peer, Take(raw));
  if (offer.peer.empty()) return InvalidArgument("an offer without an address");
  while (true) {
    MR_ASSIGN_OR_RETURN(auto key, Take(raw));
    if (key.empty()) break;
    offer.keys.push_back(std::move(key));
  }
  MR_RETURN_IF_ERROR(CheckSegments(raw, kSegmentBytes, bytes));
  for (size_t at = 0; at < raw.size(); at += kSegmentBytes) {
    offer.segments.push_back({LoadLe<uint64_t>(&raw[at]), LoadLe<uint64_t>(&raw[at + 8]),
                              LoadLe<uint64_t>(&raw[at + 16])});
    if (offer.segments.back().key >= offer.keys.size()) {
      return InvalidArgument("an offer without a key to its segments");
    }
  }
  return offer;
}

Result<size_t> RemoteRead::Copy(std::span<std::byte> rest, uint32_t& sum) {
  MR_CHECK(under_way_ == 0);
  MR_RETURN_IF_ERROR(error_);
  const std::span<const std::byte> come = rest.first(std::exchange(window_bytes_, 0));
  Ask(rest.subspan(come.size()));
  sum = Crc32c(come, sum);
  return come.size();
}

void RemoteRead::Ask(std::span<std::byte> rest) {
  for (size_t reads = 0; window_bytes_ < kWindowBytes && reads < kWindowReads; ++reads) {
    while (cursor_.segment < segments_.size() &&
           cursor_.offset == segments_[cursor_.segment].bytes) {
      cursor_ = {cursor_.segment + 1, 0};
    }
    if (cursor_.segment == segments_.size()) return;
    const RemoteSegment& s = segments_[cursor_.segment];
    const size_t n = std::min<uint64_t>(s.bytes - cursor_.offset, kWindowBytes - window_bytes_);
    const auto ended = peer_.Read(*keys_[s.key], s.address + cursor_.offset,
                                  rest.subspan(window_bytes_, n), *this);
    if (!ended) ++under_way_;
    if (ended && !ended->ok()) {
      error_ = *ended;
      return;
    }
    window_bytes_ += n;
    cursor_.offset += n;
  }
}

void RemoteRead::OnRead(const Status& status) {
  MR_CHECK(under_way_ > 0);
  if (error_.ok()) error_ = status;
  if (--under_way_ == 0) on_come_();
}

}  // namespace millrace::net
