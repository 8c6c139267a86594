#include "net/data/served_pull.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "net/data/crc32c.h"

namespace millrace::net {

Status ServedPull::Begin(PullSource source, std::optional<SharedPlaces> shared, Time now) {
  if (auto* given = std::get_if<PullSegments>(&source)) {
    segments_ = std::move(given->segments);
    std::erase_if(segments_, [](const auto& s) { return s.empty(); });
    pin_ = std::move(given->pin);
    for (const auto& s : segments_) total_ += s.size();
    direct_ = may_map_ && shared && total_ >= kDirectBytesMin &&
              shared->segments.size() <= kFrameBytesMax / kSharedSegmentBytes;
    if (direct_) shared_ = *std::move(shared);
  } else {
    producer_ = std::get<PullProducer>(std::move(source));
    total_ = producer_.bytes;
  }
  if (total_ > wanted_bytes_) {
    return InvalidArgument(
        fmt::format("the owner has {} bytes, the destination holds {}", total_, wanted_bytes_));
  }
  begun_ = true;
  begun_at_ = now;
  return OkStatus();
}

bool ServedPull::Next(OutFrame& out) {
  if (!begun_ || direct_ || sent_ == total_) return false;
  out.parts.clear();
  size_t bytes = 0;
  if (producer_.produce) {
    if (ready_.empty()) return false;
    const Payload chunk = std::move(ready_.front());
    ready_.pop_front();
    bytes = chunk.size();
    out.parts.push_back(chunk.bytes());
    out.owners = {chunk.owner(), nullptr};
  } else {
    while (bytes < kFrameBytesMax && cursor_.segment < segments_.size() &&
           out.parts.size() < kPartsPerFrame) {
      const auto rest = segments_[cursor_.segment].subspan(cursor_.offset);
      const auto part = rest.first(std::min(rest.size(), kFrameBytesMax - bytes));
      out.parts.push_back(part);
      bytes += part.size();
      cursor_.offset += part.size();
      if (part.size() == rest.size()) cursor_ = {cursor_.segment + 1, 0};
    }
    out.owners = {pin_, nullptr};
  }
  out.header = {.type = FrameType::kPullData,
                .payload_bytes = static_cast<uint32_t>(bytes),
                .id = id_,
                .value = sent_};
  sent_ += bytes;
  out.more = !producer_.produce;  // of data, or the end
  return true;
}

std::optional<ServedPull::Chunk> ServedPull::NextToMake() {
  if (!begun_ || !producer_.produce || making_ || made_ == total_ ||
      ready_.size() >= kChunksAhead) {
    return std::nullopt;
  }
  making_ = true;
  return Chunk{made_, static_cast<size_t>(std::min<uint64_t>(kFrameBytesMax, total_ - made_))};
}

void ServedPull::Made(Payload chunk) {
  MR_CHECK(making_);
  making_ = false;
  made_ += chunk.size();
  ready_.push_back(std::move(chunk));
}

bool ServedPull::AddToSum(size_t bytes) {
  while (bytes > 0 && sum_cursor_.segment < segments_.size()) {
    const auto rest = segments_[sum_cursor_.segment].subspan(sum_cursor_.offset);
    const auto part = rest.first(std::min(rest.size(), bytes));
    sum_ = Crc32c(part, sum_);
    bytes -= part.size();
    sum_cursor_.offset += part.size();
    if (part.size() == rest.size()) sum_cursor_ = {sum_cursor_.segment + 1, 0};
  }
  return sum_cursor_.segment == segments_.size();
}

}  // namespace millrace::net
