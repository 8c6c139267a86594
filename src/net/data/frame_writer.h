// Turns frames into bytes on a stream, several frames per system call. Owned by a link; one thread
// at a time.
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

  // Bytes outside frames (the hello). REQUIRES: no frame was sent.
  void PushRaw(std::vector<std::byte> bytes);

  // Writes until there is nothing left, the socket accepts no more, or `budget_bytes` are written.
  End Write(ByteStream& stream, const Source& next, size_t budget_bytes);

  // The owners of written frames. Drop them without holding a lock: they are the users' code.
  std::vector<std::shared_ptr<const void>> TakeDone() { return std::exchange(done_, {}); }

  const std::string& failure() const { return failure_; }
  uint64_t frames() const { return frames_; }

 private:
  // Size of a batch of frames; an urgent frame waits for the rest of a batch. A stream that takes
  // whole batches without blocking gets larger ones, because every system call costs the wake-up of
  // a reader that has read everything so far. A stream that blocks gets the smallest again.
  static constexpr size_t kBatchBytesMin = kFrameBytesMax;
  static constexpr size_t kBatchBytesMax = 4 * kFrameBytesMax;
  static constexpr size_t kBatchFrames = 32;
  static constexpr size_t kBatchParts = 512;

  bool Fill(const Source& next);
  void Skip(size_t bytes);

  std::vector<std::byte> raw_;
  std::vector<OutFrame> batch_;
  size_t batch_frames_ = 0;  // used elements of batch_, which are reused
  size_t batch_bytes_ = kBatchBytesMin;
  bool more_ = false;  // of the last of them
  std::vector<HeaderBytes> headers_;
  std::vector<iovec> parts_;
  size_t at_ = 0;  // the first part not yet completely written
  uint64_t frames_ = 0;
  std::vector<std::shared_ptr<const void>> done_;
  std::string failure_;
};

}  // namespace millrace::net
