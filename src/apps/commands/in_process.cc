#include "apps/commands/in_process.h"

#include <fmt/format.h>

#include <filesystem>
#include <span>
#include <utility>

#include "apps/cluster/controller_options.h"
#include "apps/cluster/end_tokens.h"
#include "base/log.h"
#include "base/version.h"
#include "text/tool_format.h"

namespace millrace::apps {
namespace {

constexpr int kClientClosedRequest = 499;

template <typename Format>
std::string Names(std::span<const Format> formats) {
  std::string names = "auto, none";
  for (const Format& format : formats) names += fmt::format(", {}", format.name);
  return names;
}

}  // namespace

Status CheckAnswerParsers(const AnswerParsers& parsers) {
  const auto usual = [](const std::string& name) { return name == "auto" || name == "none"; };
  if (!usual(parsers.tool_calls) && text::FindToolFormat(parsers.tool_calls) == nullptr) {
    return InvalidArgument(fmt::format("--tool-call-parser {}: it must be one of {}",
                                       Printable(parsers.tool_calls), Names(text::ToolFormats())));
  }
  if (!usual(parsers.reasoning) && text::FindReasoningFormat(parsers.reasoning) == nullptr) {
    return InvalidArgument(fmt::format("--reasoning-parser {}: it must be one of {}",
                                       Printable(parsers.reasoning),
                                       Names(text::ReasoningFormats())));
  }
  return OkStatus();
}

serve::ServedModel ToServed(LocalModel& model, const AnswerParsers& parsers) {
  serve::ServedModel served;
  served.engine = model.engine.get();
  served.cluster = model.cluster.get();
  served.earlier = model.earlier.get();
  served.tokenizer = model.tokenizer;
  if (auto table = TokenTableOf(model); table.ok()) {
    served.grammars = text::Grammars::Of(*table);
  } else {
    served.grammars = table.status();
  }
  served.chat_template = model.chat_template;
  const std::string source = model.chat_template ? model.chat_template->source() : "";
  const std::string tool_source = model.chat_template ? model.chat_template->tool_source() : "";
  served.tool_format = parsers.tool_calls == "auto" ? text::ToolFormatOf(tool_source)
                                                    : text::FindToolFormat(parsers.tool_calls);
  served.reasoning_format = parsers.reasoning == "auto"
                                ? text::ReasoningFormatOf(source)
                                : text::FindReasoningFormat(parsers.reasoning);
  served.spec = model.spec;
  served.end_tokens = EndTokens(model);
  served.max_model_len = model.kv.max_model_len;
  served.defaults = {.temperature = model.generation.temperature,
                     .top_p = model.generation.top_p,
                     .top_k = model.generation.top_k,
                     .min_p = model.generation.min_p,
                     .repetition_penalty = model.generation.repetition_penalty};
  served.cache_config = {{"block_size", std::to_string(model.block_size)},
                         {"num_cpu_blocks", std::to_string(model.kv.num_host_blocks)}};
  return served;
}

std::string DefaultServedName(const std::string& model) {
  std::error_code error;
  if (!std::filesystem::is_directory(model, error)) return model;
  std::filesystem::path path = std::filesystem::absolute(model, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string base = path.filename().string();
  return base.empty() ? model : base;
}

InProcessApi::InProcessApi(LocalModel& model, const Clock& clock)
    : service_({.served_names = {"model"}, .version = Version()}, clock),
      handler_(service_.Handler()) {
  service_.Ready(ToServed(model));
}

InProcessApi::~InProcessApi() { service_.Drain(Duration::Millis(0)); }

std::shared_ptr<InProcessApi::Reply> InProcessApi::Post(const std::string& path, std::string body,
                                                        PostCallbacks callbacks) {
  auto reply = std::make_shared<Reply>(std::move(callbacks));
  net::HttpRequest request;
  request.method = "POST";
  request.path = path;
  request.headers = {{"Content-Type", "application/json"}};
  request.body = std::move(body);
  request.peer = "in process";
  handler_(std::move(request), reply);
  return reply;
}

InProcessApi::Reply::~Reply() {
  Finish({.status = 500, .body = "{\"error\":{\"message\":\"the request got no answer\"}}"});
}

void InProcessApi::Reply::Hangup() {
  std::function<void()> callback;
  {
    MutexLock lock(mutex_);
    if (done_) return;
    gone_ = true;
    callback = std::exchange(on_disconnect_, nullptr);
  }
  if (callback) callback();
  Finish({.status = kClientClosedRequest});
}

void InProcessApi::Reply::Send(net::HttpResponse response) { Finish(std::move(response)); }

void InProcessApi::Reply::Start(net::HttpResponse head) {
  MutexLock lock(mutex_);
  head_ = std::move(head);
}

bool InProcessApi::Reply::Write(std::string part) {
  MutexLock lock(mutex_);
  if (gone_ || done_) return false;
  if (callbacks_.on_data) callbacks_.on_data(part);
  return true;
}

void InProcessApi::Reply::End() {
  net::HttpResponse head;
  {
    MutexLock lock(mutex_);
    head = head_;
  }
  Finish(std::move(head));
}

void InProcessApi::Reply::OnDisconnect(std::function<void()> callback) {
  {
    MutexLock lock(mutex_);
    if (!gone_) {
      on_disconnect_ = std::move(callback);
      return;
    }
  }
  callback();
}

bool InProcessApi::Reply::disconnected() const {
  MutexLock lock(mutex_);
  return gone_;
}

void InProcessApi::Reply::Finish(net::HttpResponse response) {
  MutexLock lock(mutex_);
  if (std::exchange(done_, true)) return;
  on_disconnect_ = nullptr;
  callbacks_.on_done(std::move(response));
}

}  // namespace millrace::apps
