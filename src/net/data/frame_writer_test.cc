#include "net/data/frame_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace millrace::net {
namespace {

// A socket with room for a given number of bytes.
class Socket : public ByteStream {
 public:
  explicit Socket(size_t room) : room_(room) {}

  IoResult Read(std::span<const iovec>) override { return {.blocked = true}; }
  IoResult Write(std::span<const iovec> parts, bool) override {
    if (room_ == 0) return {.blocked = true};
    size_t offered = 0;
    for (const iovec& part : parts) offered += part.iov_len;
    const size_t taken = std::min(offered, room_);
    room_ -= taken;
    taken_ += taken;
    return {.bytes = taken};
  }
  bool one_thread() const override { return true; }
  int fd() const override { return -1; }

  void MakeRoom(size_t bytes) { room_ += bytes; }
  size_t taken() const { return taken_; }

 private:
  size_t room_;
  size_t taken_ = 0;
};

// Bulk data cut into frames; `left` of them remain.
struct Bulk {
  static constexpr size_t kPayloadBytes = kFrameBytesMax / 4;
  static constexpr size_t kBytes = kFrameHeaderBytes + kPayloadBytes;

  bool Next(OutFrame& out) {
    if (left == 0) return false;
    --left;
    ++begun;
    out.header = {.type = FrameType::kPullData, .payload_bytes = kPayloadBytes};
    out.parts = {payload};
    return true;
  }
  FrameWriter::Source source() {
    return [this](OutFrame& out) { return Next(out); };
  }

  std::vector<std::byte> payload = std::vector<std::byte>(kPayloadBytes);
  size_t left = 1000;
  size_t begun = 0;
};

// Writes one batch; returns the number of its frames.
size_t OneBatch(FrameWriter& writer, Socket& socket, Bulk& bulk) {
  const size_t before = bulk.begun;
  EXPECT_EQ(writer.Write(socket, bulk.source(), /*budget_bytes=*/1), FrameWriter::End::kBudget);
  return bulk.begun - before;
}

TEST(FrameWriter, AStreamThatTakesWholeBatchesGetsLargerOnes) {
  FrameWriter writer;
  Socket socket(1 << 30);
  Bulk bulk;
  EXPECT_EQ(OneBatch(writer, socket, bulk), 4u) << "of kFrameBytesMax";
  EXPECT_EQ(OneBatch(writer, socket, bulk), 8u);
  EXPECT_EQ(OneBatch(writer, socket, bulk), 16u);
  EXPECT_EQ(OneBatch(writer, socket, bulk), 16u) << "the largest batch";
  bulk.left = 2;
  EXPECT_EQ(OneBatch(writer, socket, bulk), 2u);
  bulk.left = 1000;
  EXPECT_EQ(OneBatch(writer, socket, bulk), 4u) << "one batch without blocking";
}

// An urgent frame waits for bytes that were begun and are not written.
TEST(FrameWriter, BehindASocketThatBlocksAFrameWaitsForTheSmallestBatch) {
  FrameWriter writer;
  Socket socket(0);
  Bulk bulk;
  size_t waits_most = 0;
  for (int i = 0; i < 40; ++i) {
    socket.MakeRoom(kFrameBytesMax / 2);
    EXPECT_EQ(writer.Write(socket, bulk.source(), 1 << 30), FrameWriter::End::kBlocked);
    waits_most = std::max(waits_most, bulk.begun * Bulk::kBytes - socket.taken());
  }
  EXPECT_LE(waits_most, 4 * Bulk::kBytes);

  // A burst of room lets batches grow; at most one is large when the room ends.
  socket.MakeRoom(64 * Bulk::kBytes);
  EXPECT_EQ(writer.Write(socket, bulk.source(), 1 << 30), FrameWriter::End::kBlocked);
  EXPECT_LE(bulk.begun * Bulk::kBytes - socket.taken(), 16 * Bulk::kBytes);
  socket.MakeRoom(bulk.begun * Bulk::kBytes - socket.taken() + kFrameBytesMax / 2);
  EXPECT_EQ(writer.Write(socket, bulk.source(), 1 << 30), FrameWriter::End::kBlocked);
  EXPECT_LE(bulk.begun * Bulk::kBytes - socket.taken(), 4 * Bulk::kBytes);
}

}  // namespace
}  // namespace millrace::net
