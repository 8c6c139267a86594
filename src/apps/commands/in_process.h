// InProcessApi: the OpenAI API of a model in this process, called without a socket. `chat` and
// `generate` use the same code as the HTTP server, so they accept, refuse and answer as it does.
//
// Owns the service; the model must outlive it. One thread calls Post; callbacks run on the
// service's threads and must be quick.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cluster/local_model.h"
#include "base/mutex.h"
#include "net/http/http.h"
#include "serve/service.h"

namespace millrace::apps {

// Describes a loaded model to the service. The result points to parts of `model`.
// How answers are split into reasoning, content and tool calls: "auto" by the model's chat
// template, "none", or a name of text/tool_format.h.
struct AnswerParsers {
  std::string tool_calls = "auto";
  std::string reasoning = "auto";
};
Status CheckAnswerParsers(const AnswerParsers& parsers);

// REQUIRES: CheckAnswerParsers has passed.
serve::ServedModel ToServed(LocalModel& model, const AnswerParsers& parsers = {});
// The name that a model is served under by default: its folder's name without the path; or `model`
// itself if there is no such folder.
std::string DefaultServedName(const std::string& model);

// Called one at a time, and on_data never after on_done. They must not call the Reply.
struct PostCallbacks {
  std::function<void(std::string_view part)> on_data;  // of a streamed answer; may be null
  std::function<void(net::HttpResponse)> on_done;      // once, last; a streamed body is empty
};

class InProcessApi {
 public:
  InProcessApi(LocalModel& model, const Clock& clock);
  ~InProcessApi();

  // Keep the result to be able to end the answer early: Hangup() acts like a client that
  // disconnects, and on_done follows at once with status 499.
  class Reply;
  std::shared_ptr<Reply> Post(const std::string& path, std::string body, PostCallbacks callbacks);

 private:
  serve::Service service_;
  net::HttpHandler handler_;
};

class InProcessApi::Reply : public net::HttpReply {
 public:
  explicit Reply(PostCallbacks callbacks) : callbacks_(std::move(callbacks)) {}
  ~Reply() override;

  void Hangup();

  void Send(net::HttpResponse response) override;
  void Start(net::HttpResponse head) override;
  bool Write(std::string part) override;
  void End() override;
  void OnDisconnect(std::function<void()> callback) override;
  bool disconnected() const override;

 private:
  void Finish(net::HttpResponse response);

  const PostCallbacks callbacks_;
  mutable Mutex mutex_;
  net::HttpResponse head_ MR_GUARDED_BY(mutex_);
  std::function<void()> on_disconnect_ MR_GUARDED_BY(mutex_);
  bool done_ MR_GUARDED_BY(mutex_) = false;
  bool gone_ MR_GUARDED_BY(mutex_) = false;
};

}  // namespace millrace::apps
