#include "net/data/frame_writer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "net/data/crc32c.h"

namespace millrace::net {

void FrameWriter::PushRaw(std::vector<std::byte> bytes) {
  MR_CHECK(frames_ == 0);
  std::vector<std::byte> all;
  for (; at_ < parts_.size(); ++at_) {
    const auto* begin = static_cast<const std::byte*>(parts_[at_].iov_base);
    all.insert(all.end(), begin, begin + parts_[at_].iov_len);
  }
  all.insert(all.end(), bytes.begin(), bytes.end());
  raw_ = std::move(all);
  parts_ = {{raw_.data(), raw_.size()}};
  at_ = 0;
}

bool FrameWriter::Fill(const Source& next) {
  for (size_t i = 0; i < batch_frames_; ++i) {
    for (auto& owner : batch_[i].owners) {
      if (owner != nullptr) done_.push_back(std::move(owner));
    }
  }
  batch_frames_ = 0;
  more_ = false;
  parts_.clear();
  at_ = 0;
  if (batch_.empty()) {
    batch_.resize(kBatchFrames);
    headers_.resize(kBatchFrames);
  }
  size_t bytes = 0;
  while (batch_frames_ < kBatchFrames && bytes < batch_bytes_ && parts_.size() < kBatchParts) {
    OutFrame& frame = batch_[batch_frames_];
    frame.owners = {};
    frame.parts.clear();
    frame.more = false;
    if (!next(frame)) break;
    more_ = frame.more;
    uint32_t checksum = 0;
    for (auto part : frame.parts) checksum = Crc32c(part, checksum);
    HeaderBytes& header = headers_[batch_frames_];
    header = EncodeHeader(frame.header, checksum, static_cast<uint32_t>(frames_));
    ++frames_;
    ++batch_frames_;
    parts_.push_back({header.data(), header.size()});
    for (auto part : frame.parts) {
      parts_.push_back({const_cast<std::byte*>(part.data()), part.size()});
    }
    bytes += kFrameHeaderBytes + frame.header.payload_bytes;
  }
  // Doubles until Write finds that the stream accepts no more.
  batch_bytes_ = bytes < batch_bytes_ ? kBatchBytesMin : std::min(2 * batch_bytes_, kBatchBytesMax);
  return batch_frames_ > 0;
}

void FrameWriter::Skip(size_t bytes) {
  while (at_ < parts_.size() && bytes >= parts_[at_].iov_len) {
    bytes -= parts_[at_].iov_len;
    ++at_;
  }
  if (bytes == 0) return;
  parts_[at_].iov_base = static_cast<std::byte*>(parts_[at_].iov_base) + bytes;
  parts_[at_].iov_len -= bytes;
}

FrameWriter::End FrameWriter::Write(ByteStream& stream, const Source& next, size_t budget_bytes) {
  size_t written = 0;
  while (true) {
    if (at_ == parts_.size() && !Fill(next) && !stream.Pending()) return End::kDry;
    // A batch is written in whole system calls; if it has more parts than one call takes, in
    // several.
    constexpr size_t kPartsPerCall = 1024;
    const auto rest = std::span<const iovec>(parts_).subspan(at_);
    const bool whole = rest.size() <= kPartsPerCall;
    const IoResult io =
        stream.Write(rest.first(std::min(rest.size(), kPartsPerCall)), more_ || !whole);
    Skip(io.bytes);
    written += io.bytes;
    if (!io.ended.empty()) {
      failure_ = io.ended;
      return End::kFailed;
    }
    if (io.blocked || (io.bytes == 0 && stream.Pending())) {
      batch_bytes_ = kBatchBytesMin;
      return End::kBlocked;
    }
    if (written >= budget_bytes) return End::kBudget;
  }
}

}  // namespace millrace::net
