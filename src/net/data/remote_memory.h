// Reading a peer's memory with the network card, without a hand of the peer's (RDMA): what a plane
// needs of a library that can. OpenRemoteMemory is in ucx_remote_memory.cc or, in a build without
// UCX, in no_remote_memory.cc.
//
// An owner registers memory once and tells a reader its own address, keys and places (an offer);
// the reader connects and reads. Owned by a plane. Threads: as said at each class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/data/event_loop.h"

namespace millrace::net {

// Bytes at an address of the owner's, readable with one of the offer's keys.
struct RemoteSegment {
  uint64_t key = 0;  // its place among the keys
  uint64_t address = 0;
  uint64_t bytes = 0;
};

// What a kPullRemote frame carries.
struct RemoteOffer {
  std::vector<std::byte> peer;  // how the owner is connected to
  std::vector<std::vector<std::byte>> keys;
  std::vector<RemoteSegment> segments;
};
// REQUIRES: peer and keys have less than 64 KiB each.
std::vector<std::byte> EncodeOffer(const RemoteOffer& offer);
// An error unless the segments hold `bytes` in all and name keys that are there.
Result<RemoteOffer> DecodeOffer(std::span<const std::byte> raw, uint64_t bytes);

struct RemoteKey {
  virtual ~RemoteKey() = default;
};

// Told when a read that was under way has ended, well or not. It must not call the peer.
class RemoteSink {
 public:
  virtual ~RemoteSink() = default;
  virtual void OnRead(const Status& status) = 0;
};

// The reader's side, of one peer. The loop's thread.
class RemotePeer {
 public:
  // Ends what is under way and tells the sinks; afterwards nothing is written any more.
  virtual ~RemotePeer() = default;
  virtual Result<std::unique_ptr<RemoteKey>> Key(std::span<const std::byte> packed) = 0;
  // The end, if it has come already; else the sink, which must live until then, is told.
  virtual std::optional<Status> Read(const RemoteKey& key, uint64_t address,
                                     std::span<std::byte> to, RemoteSink& sink) = 0;
};

class RemoteMemory {
 public:
  struct Places {
    std::vector<std::byte> offer;  // encoded
    std::vector<std::shared_ptr<const void>> registrations;
  };

  virtual ~RemoteMemory() = default;

  // ---- any thread

  // Peers may read `memory` until what is returned is let go. It may outlive the plane.
  virtual Result<std::shared_ptr<const void>> Register(std::span<const std::byte> memory) = 0;
  // What a reader must know of the segments, when all of them lie in registered memory.
  virtual std::optional<Places> Find(std::span<const std::span<const std::byte>> segments) = 0;

  // ---- the loop's thread

  virtual Result<std::unique_ptr<RemotePeer>> Connect(std::span<const std::byte> peer) = 0;
};

// `transports`: UCX's names, with commas. To be freed after the loop has stopped. kUnimplemented: a
// build without UCX; kUnavailable: no device.
Result<std::unique_ptr<RemoteMemory>> OpenRemoteMemory(EventLoop& loop,
                                                       const std::string& transports);

}  // namespace millrace::net
