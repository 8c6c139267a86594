// A pull whose bytes the network card reads from the owner's memory: windows of reads, summed in
// order when they have arrived, while the next window is in progress. Owned by a link. The loop's
// thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "net/data/direct_read.h"
#include "net/data/remote_memory.h"
#include "net/data/same_host.h"

namespace millrace::net {

class RemoteRead final : public DirectRead, private RemoteSink {
 public:
  using Keys = std::vector<std::unique_ptr<RemoteKey>>;
  // REQUIRES: the segments' keys exist. `on_come` is called when it has stopped waiting; it must
  // not call this object.
  RemoteRead(RemotePeer& peer, Keys keys, std::vector<RemoteSegment> segments, uint64_t total,
             std::function<void()> on_come)
      : DirectRead(total),
        peer_(peer),
        keys_(std::move(keys)),
        segments_(std::move(segments)),
        on_come_(std::move(on_come)) {}

  bool waiting() const override { return under_way_ > 0; }

 private:
  Result<size_t> Copy(std::span<std::byte> rest, uint32_t& sum) override;
  void OnRead(const Status& status) override;
  void Ask(std::span<std::byte> rest);

  RemotePeer& peer_;
  const Keys keys_;
  const std::vector<RemoteSegment> segments_;
  const std::function<void()> on_come_;
  SegmentCursor cursor_;
  size_t window_bytes_ = 0;  // requested, not yet summed
  size_t under_way_ = 0;
  Status error_;  // of the first read that failed
};

}  // namespace millrace::net
