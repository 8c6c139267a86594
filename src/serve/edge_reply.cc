#include "serve/edge_reply.h"

namespace millrace::serve {

EdgeReply::EdgeReply(std::shared_ptr<net::HttpReply> inner, Headers headers,
                     std::function<void(int status)> done)
    : inner_(std::move(inner)), headers_(std::move(headers)), done_(std::move(done)) {}

EdgeReply::~EdgeReply() { Done(inner_->disconnected() ? kStatusClientGone : 500); }

void EdgeReply::Send(net::HttpResponse response) {
  AddHeaders(response);
  const int status = response.status;
  inner_->Send(std::move(response));
  Done(status);
}

void EdgeReply::Start(net::HttpResponse head) {
  AddHeaders(head);
  started_status_ = head.status;
  inner_->Start(std::move(head));
}

void EdgeReply::End() {
  inner_->End();
  Done(inner_->disconnected() ? kStatusClientGone : started_status_.load());
}

void EdgeReply::AddHeaders(net::HttpResponse& response) const {
  response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
}

void EdgeReply::Done(int status) {
  if (!counted_.exchange(true)) done_(status);
}

}  // namespace millrace::serve
