// DecoratedReply: wraps the reply of one HTTP request. It adds the headers that every answer
// carries (x-request-id, CORS) and reports the final status exactly once for the HTTP metrics. Same
// threads as HttpReply.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "net/http/http.h"

namespace millrace::serve {

using Headers = std::vector<std::pair<std::string, std::string>>;

inline constexpr int kStatusClientGone = 499;  // in metrics only

class DecoratedReply : public net::HttpReply {
 public:
  // Calls `done` exactly once with the status: when the answer ends, or from the destructor if it
  // never did.
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
