// One pull on its owner's side: what remains to be sent. Owned by an IncomingLink; callers lock.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/data/data_plane.h"
#include "net/data/direct_read.h"
#include "net/data/message_queue.h"
#include "net/data/shared_table.h"

namespace millrace::net {

class ServedPull {
 public:
  // Chunks produced and not yet sent, for a source that produces them.
  static constexpr size_t kChunksAhead = 4;
  // Smaller results are sent: asking for the sum would take as long.
  static constexpr uint64_t kDirectBytesMin = 32 << 10;

  // may_map: the reader may be able to map what the owner shares.
  ServedPull(uint64_t id, uint64_t wanted_bytes, bool may_map)
      : id_(id), wanted_bytes_(wanted_bytes), may_map_(may_map) {}

  uint64_t id() const { return id_; }
  bool begun() const { return begun_; }

  // The handler's result; `shared` if all segments are in shared memory. An error ends the pull.
  Status Begin(PullSource source, std::optional<SharedPlaces> shared, Time now);
  Time begun_at() const { return begun_at_; }

  uint64_t total() const { return total_; }
  bool may_map() const { return may_map_; }
  bool direct() const { return direct_; }
  bool sent() const { return begun_ && !direct_ && sent_ == total_; }

  // The next frame of data, if there is one now.
  bool Next(OutFrame& out);

  // ---- a source that produces its bytes
  struct Chunk {
    uint64_t offset = 0;
    size_t bytes = 0;
  };
  // The chunk to produce next; nothing when enough are ready, all are done, or one is in progress.
  std::optional<Chunk> NextToMake();
  void Made(Payload chunk);
  const PullProducer& producer() const { return producer_; }

  // ---- direct reading
  // The memory that the reader will map, and where the bytes are.
  const SharedPlaces& shared() const { return shared_; }
  // Adds up to `bytes` to the sum; true when it is complete. One thread, without a lock.
  bool AddToSum(size_t bytes);
  uint32_t sum() const { return sum_; }

 private:
  static constexpr size_t kPartsPerFrame = 256;
  // The position of the next byte in `segments_`.
  struct SegmentCursor {
    size_t segment = 0;
    uint64_t offset = 0;
  };

  const uint64_t id_;
  const uint64_t wanted_bytes_;
  const bool may_map_;
  bool begun_ = false;
  Time begun_at_;
  bool direct_ = false;
  uint64_t total_ = 0, sent_ = 0;

  std::vector<std::span<const std::byte>> segments_;
  std::shared_ptr<const void> pin_;
  SharedPlaces shared_;
  SegmentCursor cursor_;      // position in what is sent
  SegmentCursor sum_cursor_;  // position in what is summed
  uint32_t sum_ = 0;

  PullProducer producer_;
  std::deque<Payload> ready_;
  uint64_t made_ = 0;
  bool making_ = false;
};

}  // namespace millrace::net
