// DecoratedReply: the reply of one request with the headers every answer carries (x-request-id,
// CORS), counted once in the HTTP metrics whatever becomes of it. Same threads as HttpReply.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "net/http.h"

namespace millrace::serve {

using Headers = std::vector<std::pair<std::string, std::string>>;

inline constexpr int kStatusClientGone = 499;  // in metrics only

class DecoratedReply : public net::HttpReply {
 public:
  // `done` is called once with the status: at the answer's end, or when nobody will answer any
  // more.
  DecoratedReply(std::shared_ptr<net::HttpReply> inner, Headers headers,
                 std::function<void(int status)> done);
  ~DecoratedReply() override;

  void Send(net::HttpResponse response) override;
  void Start(net::HttpResponse head) override;
  bool Write(std::string part) override { return inner_->Write(std::move(part)); }
  void End() override;
  void OnDisconnect(std::function<void()> callback) override {
    inner_->OnDisconnect(std::move(callback));
  }
  bool disconnected() const override { return inner_->disconnected(); }

 private:
  void AddHeaders(net::HttpResponse& response) const;
  void Done(int status);

  const std::shared_ptr<net::HttpReply> inner_;
  const Headers headers_;
  std::function<void(int status)> done_;
  std::atomic<bool> counted_ = false;
  std::atomic<int> started_status_ = 0;
};

}  // namespace millrace::serve
