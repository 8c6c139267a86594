// StoreFixture: what the conformance suite needs from a kind of store. Each instantiation of the
// suite names a StoreKind, which creates the fixture.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "cluster/store/store.h"

namespace millrace::cluster::testing {

class StoreFixture {
 public:
  virtual ~StoreFixture() = default;
  // Connects as another client of the same cluster. May return the same store again.
  virtual std::shared_ptr<Store> Connect() = 0;
  // Connects as a client of another cluster in the same store. Null if a store has only one.
  virtual std::shared_ptr<Store> ConnectElsewhere() = 0;
  virtual Duration shortest_ttl() const = 0;
  virtual int watched_writes() const { return 1000; }
};

struct StoreKind {
  std::string name;
  std::function<std::unique_ptr<StoreFixture>()> make;
};

// A store behind a connection that can be cut. While it is cut, every call fails as if the host
// were gone, and watches report nothing.
class CuttableStore : public Store {
 public:
  explicit CuttableStore(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}
  void Cut() { *cut_ = true; }
  void Reconnect() { *cut_ = false; }

  Result<std::optional<KeyValue>> Get(std::string_view key, Duration timeout) override {
    if (*cut_) return Gone();
    return inner_->Get(key, timeout);
  }
  Result<Listing> List(std::string_view prefix, Duration timeout) override {
    if (*cut_) return Gone();
    return inner_->List(prefix, timeout);
  }
  Result<Revision> Put(std::string_view key, std::string_view value,
                       const WriteOptions& options) override {
    if (*cut_) return Gone();
    return inner_->Put(key, value, options);
  }
  Result<Revision> CompareAndPut(std::string_view key, std::optional<Revision> expected,
                                 std::string_view value, const WriteOptions& options) override {
    if (*cut_) return Gone();
    return inner_->CompareAndPut(key, expected, value, options);
  }
  Result<Revision> Delete(std::string_view key, const WriteOptions& options) override {
    if (*cut_) return Gone();
    return inner_->Delete(key, options);
  }
  Result<Lease> Grant(Duration ttl, Duration timeout) override {
    if (*cut_) return Gone();
    return inner_->Grant(ttl, timeout);
  }
  Result<Duration> KeepAlive(LeaseId lease, Duration timeout) override {
    if (*cut_) return Gone();
    return inner_->KeepAlive(lease, timeout);
  }
  Status Revoke(LeaseId lease, Duration timeout) override {
    if (*cut_) return Gone();
    return inner_->Revoke(lease, timeout);
  }
  std::unique_ptr<Watch> WatchPrefix(std::string_view prefix, WatchCallback callback) override {
    return inner_->WatchPrefix(prefix, [cut = cut_, callback](const WatchUpdate& update) {
      if (!*cut) callback(update);
    });
  }

 private:
  static Status Gone() { return Unavailable("the connection is cut"); }

  const std::shared_ptr<Store> inner_;
  const std::shared_ptr<std::atomic<bool>> cut_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace millrace::cluster::testing
