// Reads a peer's memory with the network card, without the peer's processor (RDMA): the interface
// of a plane to an RDMA library. OpenRemoteMemory is in ucx_remote_memory.cc or, in a build without
// UCX, in no_remote_memory.cc.
//
// An owner registers memory once and sends a reader its own address, keys and places (an offer);
// the reader connects and reads. Owned by a plane. Threads: see each class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/event_loop.h"

namespace millrace::net {

// Bytes at an address in the owner's memory, readable with one of the offer's keys.
struct RemoteSegment {
  uint64_t key = 0;  // index into the keys
  uint64_t address = 0;
  uint64_t bytes = 0;
};

// The contents of a kPullRemote frame.
struct RemoteOffer {
  std::vector<std::byte> peer;  // the owner's address
  std::vector<std::vector<std::byte>> keys;
  std::vector<RemoteSegment> segments;
};
// REQUIRES: peer and keys have less than 64 KiB each.
std::vector<std::byte> EncodeOffer(const RemoteOffer& offer);
// An error unless the segments hold `bytes` in total and name existing keys.
Result<RemoteOffer> DecodeOffer(std::span<const std::byte> raw, uint64_t bytes);

struct RemoteKey {
  virtual ~RemoteKey() = default;
};

// Called when a read in progress has ended, successfully or not. It must not call the peer.
class RemoteSink {
 public:
  virtual ~RemoteSink() = default;
  virtual void OnRead(const Status& status) = 0;
};

// The reader's side for one peer. The loop's thread.
class RemotePeer {
 public:
  // Ends reads in progress and notifies the sinks; afterwards nothing is written.
  virtual ~RemotePeer() = default;
  virtual Result<std::unique_ptr<RemoteKey>> Key(std::span<const std::byte> packed) = 0;
  // Returns the result if it is known already. Otherwise calls the sink later, which must live
  // until then.
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

  // Peers may read `memory` until the returned object is dropped. It may outlive the plane.
  virtual Result<std::shared_ptr<const void>> Register(std::span<const std::byte> memory) = 0;
  // Describes the segments for a reader, if all of them are in registered memory.
  virtual std::optional<Places> Find(std::span<const std::span<const std::byte>> segments) = 0;

  // ---- the loop's thread

  virtual Result<std::unique_ptr<RemotePeer>> Connect(std::span<const std::byte> peer) = 0;
};

// `transports`: UCX's names, separated by commas. Destroy it after the loop has stopped.
// kUnimplemented: a build without UCX; kUnavailable: no device.
Result<std::unique_ptr<RemoteMemory>> OpenRemoteMemory(EventLoop& loop,
                                                       const std::string& transports);

}  // namespace millrace::net
