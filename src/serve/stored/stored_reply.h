// StoredReply: the reply of a response that is stored when it has ended. It holds back the last
// bytes until the store has answered, on the store's thread, so that a slow disk or a lock of
// another program holds up this response only. The bytes say `"store": false` if it is not stored.
//
// ResponsesWriter calls Hold. Threads as HttpReply; owned by those that answer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "net/http/http.h"

namespace millrace::serve {

class StoredReply : public net::HttpReply {
 public:
  // Stores what has ended where it may wait, then calls `stored` once, on any thread.
  using Store = std::function<void(std::function<void(bool)> stored)>;
  StoredReply(std::shared_ptr<net::HttpReply> inner, Store store)
      : inner_(std::move(inner)), store_(std::move(store)) {}

  // The response has ended: what is sent from now on waits for the store.
  void Hold() { holds_ = true; }

  void Send(net::HttpResponse response) override;
  void Start(net::HttpResponse head) override { inner_->Start(std::move(head)); }
  bool Write(std::string part) override;
  void End() override;
  void OnDisconnect(std::function<void()> callback) override {
    inner_->OnDisconnect(std::move(callback));
  }
  bool disconnected() const override { return inner_->disconnected(); }

 private:
  const std::shared_ptr<net::HttpReply> inner_;
  const Store store_;
  bool holds_ = false;
  std::string held_;  // of a stream
};

// The body of a response, or its last events, with `"store": false`.
std::string BodyNotStored(const std::string& body);
std::string EventsNotStored(const std::string& events);

}  // namespace millrace::serve
