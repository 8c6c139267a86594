#include "apps/bench/load_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/json.h"
#include "base/log.h"
#include "base/mutex.h"
#include "net/http/sse.h"

namespace millrace::apps {
namespace {

constexpr size_t kErrorBytesMax = 64 << 10;
constexpr int kHttpOk = 200;

std::string ErrorText(int status, const std::string& body) {
  const auto json = ParseJson(body);
  if (json.ok() && json->is_object() && json->contains("error")) {
    const Json& error = (*json)["error"];
    if (error.is_object()) return fmt::format("HTTP {}: {}", status, error.value("message", ""));
  }
  return fmt::format("HTTP {}: {}", status, Printable(body));
}

// State shared between Run and the HTTP client's thread.
struct Shared {
  Mutex mutex;
  CondVar changed;
  int in_flight MR_GUARDED_BY(mutex) = 0;
  int done MR_GUARDED_BY(mutex) = 0;
  int failed MR_GUARDED_BY(mutex) = 0;
};

}  // namespace

std::string RequestBody(const LoadTarget& target, const BenchRequest& request) {
  Json body = {{"model", target.model},
               {"max_tokens", request.output_len},
               {"temperature", 0.0},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (target.ignore_eos) body["ignore_eos"] = true;
  if (target.chat) {
    body["messages"] = {{{"role", "user"}, {"content", request.prompt_text.value_or("")}}};
  } else if (request.prompt_text) {
    body["prompt"] = *request.prompt_text;
  } else {
    body["prompt"] = request.prompt;
  }
  return DumpJson(body);
}

struct StreamTimer::Parser {
  explicit Parser(StreamTimer& timer)
      : sse([&timer](std::string_view, std::string_view data) { timer.Event(data); }) {}
  net::SseParser sse;
};

StreamTimer::StreamTimer(Time sent, bool chat)
    : parser_(std::make_unique<Parser>(*this)), sent_(sent), chat_(chat) {}

StreamTimer::~StreamTimer() = default;

void StreamTimer::Head(int status) { status_ = status; }

void StreamTimer::Data(std::string_view part, Time now) {
  if (status_ != kHttpOk) {
    body_ += part.substr(0, kErrorBytesMax - std::min(kErrorBytesMax, body_.size()));
    return;
  }
  now_ = now;
  const Status status = parser_->sse.Feed(part);
  if (!status.ok() && outcome_.error.empty()) outcome_.error = status.message();
}

void StreamTimer::Event(std::string_view data) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const auto event = ParseJson(data);
  if (!event.ok() || !event->is_object()) {
    outcome_.error = "an event of the stream is not JSON: " + Printable(data);
    return;
  }
  if (const auto error = event->find("error"); error != event->end()) {
    outcome_.error = error->is_object() ? error->value("message", "unknown") : error->dump();
    return;
  }
  if (const auto choices = event->find("choices"); choices != event->end() && !choices->empty()) {
    const Json& choice = choices->front();
    const Json text = chat_ ? choice.value("delta", Json::object()).value("content", Json())
                            : choice.value("text", Json());
    // A chat's first event has only a role, its last only a finish reason.
    if (!chat_ || (text.is_string() && text != "")) {
      Token(text.is_string() ? text.get<std::string>() : "");
    }
  }
  if (const auto usage = event->find("usage"); usage != event->end() && usage->is_object()) {
    outcome_.output_tokens = usage->value("completion_tokens", outcome_.output_tokens);
    outcome_.prompt_tokens = usage->value("prompt_tokens", outcome_.prompt_tokens);
  }
}

void StreamTimer::Token(const std::string& text) {
  if (pieces_++ == 0) {
    outcome_.ttft_s = (now_ - sent_).seconds();
  } else {
    outcome_.itls_s.push_back((now_ - last_).seconds());
  }
  last_ = now_;
  outcome_.text += text;
}

Outcome StreamTimer::Finish(const Status& status, Time now) {
  if (!status.ok()) {
    outcome_.error = status.message();
  } else if (status_ != kHttpOk) {
    outcome_.error = ErrorText(status_, body_);
  } else if (outcome_.error.empty() && !done_) {
    outcome_.error = "the stream ended before [DONE]";
  } else if (outcome_.error.empty() && pieces_ == 0) {
    outcome_.error = "the stream contained no token";
  }
  outcome_.latency_s = ((pieces_ > 0 ? last_ : now) - sent_).seconds();
  if (outcome_.output_tokens == 0) outcome_.output_tokens = pieces_;
  return std::move(outcome_);
}

LoadClient::Result LoadClient::Run(const std::vector<BenchRequest>& requests,
                                   std::optional<int> max_concurrency,
                                   const std::function<void(int, int)>& progress) {
  LoadClient::Result result;
  result.outcomes.resize(requests.size());
  Shared shared;
  const Time start = clock_.Now();
  for (size_t i = 0; i < requests.size(); ++i) {
    net::HttpCall call{.method = "POST", .url = target_.url};
    call.headers = target_.headers;
    call.headers.emplace_back("Content-Type", "application/json");
    call.body = RequestBody(target_, requests[i]);
    const Duration wait = start + Duration::Seconds(requests[i].arrival_s) - clock_.Now();
    if (wait.ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(wait.ns));
    {
      MutexLock lock(shared.mutex);
      shared.changed.wait(lock, [&]() MR_REQUIRES(shared.mutex) {
        return !max_concurrency || shared.in_flight < *max_concurrency;
      });
      ++shared.in_flight;
    }
    const Time sent = clock_.Now();
    auto timer = std::make_shared<StreamTimer>(sent, target_.chat);
    const auto prompt_tokens = static_cast<int>(requests[i].prompt.size());
    http_.Fetch(
        std::move(call),
        {.on_head = [timer](int status, const net::HttpHeaders&) { timer->Head(status); },
         .on_data = [timer, this](std::string_view part) { timer->Data(part, clock_.Now()); },
         .on_done =
             [&, timer, i, sent, prompt_tokens](Status status) {
               Outcome outcome = timer->Finish(status, clock_.Now());
               if (outcome.prompt_tokens == 0) outcome.prompt_tokens = prompt_tokens;
               outcome.start_s = (sent - start).seconds();
               MutexLock lock(shared.mutex);
               shared.failed += outcome.ok() ? 0 : 1;
               result.outcomes[i] = std::move(outcome);
               --shared.in_flight;
               progress(++shared.done, shared.failed);
               shared.changed.notify_all();  // under the lock: Run may return right after
             }});
  }
  MutexLock lock(shared.mutex);
  shared.changed.wait(lock, [&]() MR_REQUIRES(shared.mutex) {
    return shared.done == static_cast<int>(requests.size());
  });
  result.duration_s = (clock_.Now() - start).seconds();
  return result;
}

}  // namespace millrace::apps
