// TranslatedReply: answers in the form of another API. The route of that API makes a chat request
// of what it got and calls the chat route with one of these as the reply; this turns the chunks or
// the whole answer of the chat route into the other form. So the other APIs have what chat has.
//
// Threads as HttpReply: a reply's calls come one after another.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "net/http/http.h"
#include "net/http/sse.h"
#include "serve/request/field_names.h"

namespace millrace::serve {

class TranslatedReply : public net::HttpReply {
 public:
  // `ignored`: names of the request's fields that the chat route does not see. `names`: what the
  // client calls those that it sees.
  explicit TranslatedReply(std::shared_ptr<net::HttpReply> inner, std::string ignored = {},
                           FieldNames names = {});

  void Send(net::HttpResponse response) override;
  void Start(net::HttpResponse head) override;
  bool Write(std::string part) override;
  void End() override { inner_->End(); }
  void OnDisconnect(std::function<void()> callback) override {
    inner_->OnDisconnect(std::move(callback));
  }
  bool disconnected() const override { return inner_->disconnected(); }

 protected:
  // The body of an error, from {"error": {...}} with its HTTP status.
  virtual Json Error(const Json& error, int status) = 0;
  // The whole answer, from a chat.completion.
  virtual Json Whole(const Json& answer) = 0;
  // Bytes of the stream: for a chat.completion.chunk, after the last one, and for an error within
  // the stream.
  virtual std::string Chunk(const Json& chunk) = 0;
  virtual std::string Done() = 0;
  virtual std::string StreamError(const Json& error) = 0;
  // What a silent stream sends: a comment of server-sent events. Empty: nothing.
  virtual std::string Ping() const;
  virtual const char* StreamType() const { return "text/event-stream; charset=utf-8"; }

 private:
  void TakeEvent(std::string_view data);
  void AddIgnored(net::HttpResponse& response) const;

  const std::shared_ptr<net::HttpReply> inner_;
  const std::string ignored_;
  const FieldNames names_;
  net::SseParser parser_;
  std::string out_;  // translated, not yet written
};

}  // namespace millrace::serve
