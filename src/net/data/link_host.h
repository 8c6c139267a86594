// LinkHost: the state that the connections of one data plane share. Owned by the plane; outlives
// its links.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "net/data/data_plane.h"
#include "net/data/hello.h"
#include "net/data/shared_table.h"
#include "net/data/work_pool.h"
#include "net/event_loop.h"
#include "net/tls.h"

namespace millrace::net {

class OutgoingLink;
class IncomingLink;

// Counted from any thread.
class DataCounters {
 public:
  using Field = uint64_t DataPlaneStats::*;
  void Add(Field field, uint64_t n = 1) {
    std::atomic_ref(stats_.*field).fetch_add(n, std::memory_order_relaxed);
  }
  DataPlaneStats Read() const;

 private:
  mutable DataPlaneStats stats_;
};

struct LinkHost {
  virtual ~LinkHost() = default;

  TcpDataPlaneOptions options;
  DataPlaneEvents events;
  PeerAddress self;
  uint32_t user_id = 0;
  Nonce cookie = {};                  // of what this process shares: peers on this host check it
  TlsContext server_tls, client_tls;  // null without TLS
  DataCounters counters;
  SharedTable shared;
  EventLoop loop;

  WorkPool& pool() { return *pool_; }

  // All called on the loop's thread.
  virtual bool Forgotten(uint64_t incarnation) = 0;
  virtual void OnKnown(const std::shared_ptr<IncomingLink>& link) = 0;
  virtual void OnIncomingEnd(IncomingLink& link, const Status& reason) = 0;
  virtual void OnOutgoingEnd(OutgoingLink& link, const Status& reason) = 0;
  // At most one line per second for all strangers together.
  virtual void LogStranger(const std::string& who, const Status& reason) = 0;

 protected:
  std::unique_ptr<WorkPool> pool_;
};

}  // namespace millrace::net
