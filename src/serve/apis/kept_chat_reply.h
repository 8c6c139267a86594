// KeptChatReply: a client of another API that reads a stream which is kept
// (answer/retained_stream.h). Such a stream is kept as the chunks of a chat, whoever asked for it;
// this turns them into values for the client's own writer. Threads as HttpReply.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "net/http/http.h"
#include "net/http/sse.h"
#include "serve/answer/answer_writer.h"

namespace millrace::serve {

class KeptChatReply : public net::HttpReply {
 public:
  KeptChatReply(std::shared_ptr<net::HttpReply> inner, std::shared_ptr<AnswerWriter> writer);

  void Send(net::HttpResponse response) override;  // an error
  void Start(net::HttpResponse head) override;
  bool Write(std::string part) override;
  void End() override { inner_->End(); }
  void OnDisconnect(std::function<void()> callback) override {
    inner_->OnDisconnect(std::move(callback));
  }
  bool disconnected() const override { return inner_->disconnected(); }

 private:
  void TakeEvent(std::string_view data);

  const std::shared_ptr<net::HttpReply> inner_;
  const std::shared_ptr<AnswerWriter> writer_;
  net::SseParser parser_;
  AnswerEnd end_;    // as far as it is known
  std::string out_;  // not yet written
};

}  // namespace millrace::serve
