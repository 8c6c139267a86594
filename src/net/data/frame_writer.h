// Turns frames into bytes on a stream, several frames per system call. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "net/data/byte_stream.h"
#include "net/data/frame.h"
#include "net/data/message_queue.h"

namespace millrace::net {

class FrameWriter {
 public:
  using Source = std::function<bool(OutFrame&)>;  // false: nothing to send now

  enum class End { kDry, kBlocked, kBudget, kFailed };

  // Bytes that are no frames (the hello). REQUIRES: no frame was sent.
  void PushRaw(std::vector<std::byte> bytes);

  // Writes until there is nothing left, the socket takes no more, or `budget_bytes` are written.
  End Write(ByteStream& stream, const Source& next, size_t budget_bytes);

  // Owners of what has been written. To be dropped without a lock: they are the users' code.
  std::vector<std::shared_ptr<const void>> TakeDone() { return std::exchange(done_, {}); }

  const std::string& failure() const { return failure_; }
  uint64_t frames() const { return frames_; }

 private:
  // Frames begun together; an urgent frame waits for the rest of a batch. A stream that takes whole
  // batches without being blocked gets larger ones: every system call costs the wake-up of a reader
  // that has come to the end of the last one's bytes. One that blocks gets the smallest again.
  static constexpr size_t kBatchBytesMin = kFrameBytesMax;
  static constexpr size_t kBatchBytesMax = 4 * kFrameBytesMax;
  static constexpr size_t kBatchFrames = 32;
  static constexpr size_t kBatchParts = 512;

  bool Fill(const Source& next);
  void Skip(size_t bytes);

  std::vector<std::byte> raw_;
  std::vector<OutFrame> batch_;
  size_t batch_frames_ = 0;  // of batch_, whose elements are reused
  size_t batch_bytes_ = kBatchBytesMin;
  bool more_ = false;  // the last of them has said so
  std::vector<HeaderBytes> headers_;
  std::vector<iovec> parts_;
  size_t at_ = 0;  // the first part not yet written whole
  uint64_t frames_ = 0;
  std::vector<std::shared_ptr<const void>> done_;
  std::string failure_;
};

}  // namespace millrace::net
