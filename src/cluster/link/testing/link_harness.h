// ControllerEnd and WorkerEnd: both ends of the control plane for tests, which record what they
// receive. Owned by the test; the inboxes are thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cluster/link/control_client.h"
#include "cluster/link/control_server.h"

namespace millrace::cluster::testing {

inline constexpr char kToken[] = "0123456789abcdef-test-token";
inline constexpr Duration kConnectLimit = Duration::Seconds(20);

inline LinkSecurity PlainText(std::string token = kToken) {
  LinkSecurity security;
  security.token = std::move(token);
  return security;
}

// A list that one thread fills while another waits for entries.
template <typename T>
class Inbox {
 public:
  void Put(T item) {
    const MutexLock lock(mutex_);
    items_.push_back(std::move(item));
    changed_.notify_all();
  }
  // False if there are fewer than `count` items after 30 s.
  bool WaitFor(size_t count) {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30),
                             [&]() MR_REQUIRES(mutex_) { return items_.size() >= count; });
  }
  T at(size_t i) {
    const MutexLock lock(mutex_);
    return items_.at(i);
  }
  size_t size() {
    const MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<T> items_ MR_GUARDED_BY(mutex_);
};

inline bool WaitUntil(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    never.wait_for(lock, std::chrono::milliseconds(5));
  }
  return true;
}

class ControllerEnd {
 public:
  struct Heard {
    ConnectionId from;
    ToController message;
    wire::Envelope envelope;
  };

  explicit ControllerEnd(ControlServerOptions options = {.security = PlainText()}) {
    auto started = ControlServer::Start(
        std::move(options),
        {.on_message =
             [this](ConnectionId from, ToController message, const wire::Envelope& envelope) {
               messages.Put({from, std::move(message), envelope});
               if (before_return) before_return();
             },
         .on_heartbeat =
             [this](ConnectionId from, const Heartbeat& beat) {
               beats.Put({from, beat});
             },
         .on_disconnect =
             [this](ConnectionId from, const Status& reason) {
               disconnects.Put({from, reason});
             }});
    status = started.status();
    if (started.ok()) server = std::move(started).value();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(server->port()); }

  Inbox<Heard> messages;
  Inbox<std::pair<ConnectionId, Heartbeat>> beats;
  Inbox<std::pair<ConnectionId, Status>> disconnects;
  std::function<void()> before_return;  // called at the end of on_message
  Status status;
  std::unique_ptr<ControlServer> server;  // last member, so that it is destroyed first
};

class WorkerEnd {
 public:
  WorkerEnd(std::string controller, uint64_t incarnation, LinkSecurity security = PlainText())
      : incarnation_(incarnation) {
    auto made = ControlClient::Create(
        {.controller = std::move(controller),
         .security = std::move(security),
         .incarnation = incarnation_,
         .heartbeat_every = Duration::Millis(10)},
        {.on_message =
             [this](ToWorker message, const wire::Envelope& envelope) {
               messages.Put({std::move(message), envelope});
             },
         .on_disconnect = [this](const Status& reason) { disconnects.Put(reason); },
         .make_heartbeat =
             [this] { return Heartbeat{.incarnation = incarnation_, .sequence = ++beats_}; }});
    status = made.status();
    if (made.ok()) client = std::move(made).value();
  }

  Join MakeJoin() const {
    Join join;
    join.name = "worker";
    join.identity.kv_layout = "rows";
    join.address.incarnation = incarnation_;
    return join;
  }
  // Connects and sends Join.
  Status Enter() {
    MR_RETURN_IF_ERROR(status);
    MR_RETURN_IF_ERROR(client->Connect(kConnectLimit));
    return client->Send(Term(), MakeJoin());
  }

  Inbox<std::pair<ToWorker, wire::Envelope>> messages;
  Inbox<Status> disconnects;
  Status status;
  std::unique_ptr<ControlClient> client;  // destroyed before the inboxes

 private:
  const Incarnation incarnation_;
  uint64_t beats_ = 0;
};

}  // namespace millrace::cluster::testing
