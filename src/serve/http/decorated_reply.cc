#include "serve/http/decorated_reply.h"

namespace millrace::serve {

DecoratedReply::DecoratedReply(std::shared_ptr<net::HttpReply> inner, Headers headers,
                               std::function<void(int status)> done)
    : inner_(std::move(inner)), headers_(std::move(headers)), done_(std::move(done)) {}

DecoratedReply::~DecoratedReply() { Done(inner_->disconnected() ? kStatusClientGone : 500); }

void DecoratedReply::Send(net::HttpResponse response) {
  AddHeaders(response);
  const int status = response.status;
  inner_->Send(std::move(response));
  Done(status);
}

void DecoratedReply::Start(net::HttpResponse head) {
  AddHeaders(head);
  started_status_ = head.status;
  inner_->Start(std::move(head));
}

void DecoratedReply::End() {
  inner_->End();
  Done(inner_->disconnected() ? kStatusClientGone : started_status_.load());
}

void DecoratedReply::AddHeaders(net::HttpResponse& response) const {
  response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
}

void DecoratedReply::Done(int status) {
  if (!counted_.exchange(true)) done_(status);
}

}  // namespace millrace::serve
