#include "serve/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>

#include "base/log.h"
#include "base/mutex.h"
#include "base/rng.h"
#include "serve/http/cors.h"
#include "serve/http/decorated_reply.h"
#include "serve/http/gzip_body.h"
#include "serve/http/limits.h"
#include "serve/later.h"
#include "serve/observe/request_spans.h"
#include "serve/service_impl.h"
#include "serve/stored/multipart.h"

namespace millrace::serve {
namespace {

constexpr size_t kRequestIdBytesMax = 256;

bool UsableRequestId(std::string_view id) {
  return !id.empty() && id.size() <= kRequestIdBytesMax &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// Only JSON is accepted: a web page's form cannot send application/json without a preflight
// request.
bool JsonOrUnstated(const net::HttpRequest& request) {
  const auto type = request.Header("content-type");
  if (!type) return true;
  std::string media(type->substr(0, type->find_first_of("; ")));
  std::transform(media.begin(), media.end(), media.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return media == "application/json" || media.ends_with("+json");
}

bool Identity(std::string_view coding) {
  constexpr std::string_view kIdentity = "identity";
  return coding.empty() || std::ranges::equal(coding, kIdentity, {}, [](unsigned char c) {
           return static_cast<char>(std::tolower(c));
         });
}

net::HttpResponse WrongCoding(std::string_view coding) {
  net::HttpResponse response = ErrorResponse(
      {.status = 415,
       .message = fmt::format(
           "Content-Encoding '{}' is not supported: compress the body with gzip, or send it "
           "uncompressed, without this header.",
           Printable(coding, 64)),
       .code = "unsupported_media_type"});
  response.headers.emplace_back("accept-encoding", "gzip");
  return response;
}

// A request's own chat template may take long to compile and to render.
bool MayHaveTemplate(std::string_view body) {
  return body.find("\"chat_template\"") != std::string_view::npos;
}

ApiError NoSuchRoute(Endpoint endpoint, const Call& call) {
  return {.status = 404,
          .message = fmt::format(
              "{} {} is not served here; {}.", Printable(call.request.method, 16),
              Printable(call.request.path, 128),
              endpoint == Endpoint::kMain
                  ? "to generate text, use POST /v1/completions or /v1/chat/completions"
                  : "this endpoint is for operators; clients call the server's main port"),
          .code = "not_found"};
}

net::HttpResponse WrongMethod(const Call& call, const RouteTable::Match& match) {
  net::HttpResponse response =
      ErrorResponse({.status = 405,
                     .message = fmt::format("{} does not support {}; use {}.", match.on_path->path,
                                            Printable(call.request.method, 16), match.allow),
                     .code = "method_not_allowed"});
  response.headers.emplace_back("allow", match.allow);
  return response;
}

void Export(const RegistryEntry& entry, const ServiceOptions& options, const Clock& clock) {
  if (!entry.trace || !entry.trace->sampled || !entry.account) return;
  const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
  const int64_t unix_ns = std::chrono::nanoseconds(unix_time).count();
  options.spans->Send(SpansOf(entry, options.served_names.front(), unix_ns - clock.Now().ns));
}

}  // namespace

Service::Service(ServiceOptions options, const Clock& clock)
    : impl_(std::make_shared<Impl>(std::move(options), clock)) {}

Service::~Service() = default;

net::HttpHandler Service::Handler(Endpoint endpoint) {
  return [impl = impl_, endpoint](net::HttpRequest request, std::shared_ptr<net::HttpReply> reply) {
    impl->Handle(endpoint, std::move(request), std::move(reply));
  };
}

void Service::Ready(ServedModel model) { impl_->Ready(std::move(model)); }
ServiceState Service::state() const { return impl_->state(); }
void Service::SetApiKeys(ApiKeys keys) { impl_->SetApiKeys(std::move(keys)); }
void Service::BeginLeaving() { impl_->BeginLeaving(); }
void Service::BeginDrain() { impl_->BeginDrain(); }
bool Service::Drain(Duration limit) { return impl_->Drain(limit); }

Service::Impl::Impl(ServiceOptions options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      vectors_(
          {.loaded = [this](const Call& call) { return LoadedOrReply(call); },
           .draining = [this] { return state_ == ServiceState::kDraining; },
           .served_name = [this](const std::string& asked) { return ServedName(asked); },
           .new_id =
               [this](const std::string& prefix) { return NewId(prefix, next_id_.fetch_add(1)); }}),
      other_apis_(RoutesForOthers()),
      ollama_(RoutesForOthers()),
      text_(RoutesForOthers()),
      models_(RoutesForOthers(), options_.version, options_.root_path, options_.resumable.enabled),
      cluster_(RoutesForOthers(), options_.loaded_from, registry_),
      debug_(RoutesForOthers(), registry_, clock),
      keeper_(options_.resumable.enabled ? std::make_unique<StreamKeeper>(options_.resumable, clock)
                                         : nullptr),
      pings_(options_.ping_after > Duration{}
                 ? std::make_unique<StreamPings>(options_.ping_after, clock)
                 : nullptr),
      http_metrics_(std::make_shared<HttpMetrics>()),
      next_id_(1),
      workers_(options_.worker_threads, 0),
      compiling_(2, kGrammarsWaitingMax),
      large_({std::begin(kBodyClassBytes), std::end(kBodyClassBytes)}, kBodiesWaitingMax,
             kBodyBytesWaitingMax),
      stored_(RoutesForOthers(), {.store = options_.store,
                                  .queue = background_,
                                  .registry = registry_,
                                  .call = [this](Call call) { CallInside(std::move(call)); },
                                  .draining = [this] { return state_ == ServiceState::kDraining; },
                                  .clock = clock_}),
      background_(kBackgroundRunningMax, kBackgroundWaitingMax, kBackgroundPause) {
  MR_CHECK(!options_.served_names.empty()) << "served_names must not be empty";
  SetApiKeys(options_.api_keys);
  if (options_.spans != nullptr) {
    registry_.OnOver([this](const RegistryEntry& entry) { Export(entry, options_, clock_); });
  }
  AddRoutes();
}

ChatRoutes Service::Impl::RoutesForOthers() {
  return {.chat =
              [this](Call call, const OrderedJson& chat, std::shared_ptr<AnswerWriter> writer) {
                Chat(std::move(call), &chat, std::move(writer));
              },
          .embeddings =
              [this](Call call, const OrderedJson& body, const VectorForm& form) {
                vectors_.Embeddings(std::move(call), body, form);
              },
          .loaded = [this](const Call& call) { return LoadedOrReply(call); },
          .loaded_now = [this] { return model_context(); },
          .new_id = [this](const std::string& prefix) { return NewId(prefix, next_id_++); },
          .served_name = [this](const std::string& asked) { return ServedName(asked); },
          .names = options_.served_names};
}

void Service::Impl::AddRoutes() {
  auto add = [this](const char* method, const char* path, Access access, auto handler,
                    PathKind kind = PathKind::kExact) {
    routes_.Add({method, path, access,
                 [this, handler](Call call) { std::invoke(handler, this, std::move(call)); },
                 kind});
  };
  add("POST", "/v1/completions", Access::kKeyed, &Impl::Completions);
  add("POST", "/v1/chat/completions", Access::kKeyed,
      [](Impl* impl, Call call) { impl->Chat(std::move(call), nullptr, nullptr); });
  vectors_.AddTo(routes_);
  other_apis_.AddTo(routes_);
  ollama_.AddTo(routes_);
  text_.AddTo(routes_);
  models_.AddTo(routes_);
  cluster_.AddTo(routes_);
  debug_.AddTo(routes_);
  stored_.AddTo(routes_);
  if (keeper_) {
    add("GET", "/v1/streams/", Access::kKeyed, &Impl::ResumeStream, PathKind::kPrefix);
  }
  add("GET", "/load", Access::kKeyed, &Impl::Load);
  add("GET", "/health", Access::kOpen, &Impl::Health);
  add("GET", "/ping", Access::kOpen, &Impl::Health);
  add("GET", "/ready", Access::kOpen, &Impl::ReadyRoute);
  add("GET", "/metrics", Access::kMonitor, &Impl::Metrics);
}

void Service::Impl::Handle(Endpoint endpoint, net::HttpRequest request,
                           std::shared_ptr<net::HttpReply> reply) {
  Call call;
  const auto given = request.Header("x-request-id");
  call.request_id =
      given && UsableRequestId(*given) ? std::string(*given) : NewId("req-", next_id_.fetch_add(1));
  // Access is decided on the same text as the route.
  request.path = WithoutStraySlashes(request.path);
  RouteTable::Match match = routes_.Find(request.method, request.path);
  const auto below = BelowRoot(request.path, options_.root_path);
  if (endpoint == Endpoint::kMain && below && match.on_path == nullptr) {
    request.path = std::string(*below);
    match = routes_.Find(request.method, request.path);
  }
  // No CORS headers on the admin endpoints: a web page must not read answers to operators.
  Headers headers;
  if (endpoint == Endpoint::kMain) headers = CorsHeaders(request, options_.allowed_origins);
  headers.emplace_back("x-request-id", call.request_id);
  if (options_.spans != nullptr && match.on_path != nullptr &&
      match.on_path->access == Access::kKeyed) {
    const uint64_t number = next_id_.fetch_add(1);
    call.trace = TraceOf(request.Header("traceparent"), {HashCounter(trace_seed_, 3 * number),
                                                         HashCounter(trace_seed_, 3 * number + 1),
                                                         HashCounter(trace_seed_, 3 * number + 2)});
    headers.emplace_back("traceparent", call.trace->Header());
  }
  const std::string handler = match.on_path != nullptr ? match.on_path->path : "none";
  call.reply = std::make_shared<DecoratedReply>(
      std::move(reply), std::move(headers),
      [metrics = http_metrics_, &clock = clock_, method = request.method, handler,
       begun = clock_.Now()](int status) {
        metrics->Observe(method, handler, status, clock.Now() - begun);
      });
  call.rest = std::string(match.rest);
  call.request = std::move(request);
  Dispatch(endpoint, std::move(call), match);
}

std::optional<ApiError> Service::Impl::Authorize(Endpoint endpoint, const RouteTable::Match& match,
                                                 Call* call) const {
  switch (endpoint) {
    case Endpoint::kAdminSocket: return std::nullopt;
    case Endpoint::kAdminListen: return RefuseWithoutAdminKey(call->request, options_.admin_keys);
    case Endpoint::kMain: break;
  }
  const bool open = match.on_path != nullptr && match.on_path->access == Access::kOpen;
  const std::shared_ptr<const ApiKeys> keys = api_keys();
  if (open || !keys->required()) return std::nullopt;
  const auto key = keys->MatchRequest(call->request);
  if (!key) {
    return ApiError{.status = 401,
                    .message =
                        "This server needs an API key: send the header 'Authorization: Bearer KEY' "
                        "(or 'x-api-key: KEY') with a valid key.",
                    .code = "invalid_api_key"};
  }
  call->owner = keys->Fingerprint(*key);
  return std::nullopt;
}

void Service::Impl::Dispatch(Endpoint endpoint, Call call, const RouteTable::Match& match) {
  auto refuse = [&call](const ApiError& error) { call.reply->Send(ErrorResponse(error)); };
  const bool main = endpoint == Endpoint::kMain;
  if (main && IsAdminPath(call.request.path)) return refuse(AdminIsElsewhere());
  if (main && call.request.method == "OPTIONS" && match.on_path != nullptr) {
    return call.reply->Send(PreflightResponse(call.request, match.allow));
  }
  if (const auto error = Authorize(endpoint, match, &call)) {
    net::HttpResponse response = ErrorResponse(*error);
    // Callers without the key must not hold the few connections of this address.
    if (endpoint == Endpoint::kAdminListen) response.headers.emplace_back("connection", "close");
    return call.reply->Send(std::move(response));
  }
  if (match.on_path == nullptr || !ServedOn(endpoint, match.on_path->access)) {
    return refuse(NoSuchRoute(endpoint, call));
  }
  if (match.route == nullptr) return call.reply->Send(WrongMethod(call, match));
  const std::string_view coding = call.request.Header("content-encoding").value_or("");
  const bool gzip = IsGzip(coding);
  if (!gzip && !Identity(coding)) return call.reply->Send(WrongCoding(coding));
  const bool form =
      match.route->takes_form && IsMultipart(call.request.Header("content-type").value_or(""));
  if (call.request.method == "POST" && !form && !JsonOrUnstated(call.request)) {
    return refuse({.status = 415,
                   .message = "The body must be JSON: send 'Content-Type: application/json'.",
                   .code = "unsupported_media_type"});
  }
  const bool inflates = gzip && !call.request.body.empty();
  CallRoute(*match.route, std::move(call), inflates);
}

void Service::Impl::CallRoute(const Route& route, Call call, bool gzip) {
  if (call.request.body.size() <= kInlineBodyBytesMax) {
    const Status status = gzip ? Inflate(call, kInlineBodyBytesMax) : OkStatus();
    if (status.ok() && MayHaveTemplate(call.request.body)) {
      return CallLarge(route, std::move(call), false, 0);
    }
    if (status.ok()) return route.handler(std::move(call));
    if (status.code() != StatusCode::kTooLarge) {
      return call.reply->Send(ErrorResponse(FromStatus(status)));
    }
  }
  CallLarge(route, std::move(call), gzip, 0);
}

void Service::Impl::CallLarge(const Route& route, Call call, bool gzip, size_t bytes_at_least) {
  if (!gzip) {
    return CallLater(large_, registry_, "large requests", std::move(call), route.handler);
  }
  // How large it is shows only when it is inflated: each class does so up to its size.
  const size_t known = std::max(call.request.body.size(), bytes_at_least);
  const auto larger =
      std::ranges::find_if(kBodyClassBytes, [&](size_t max) { return known <= max; });
  const bool last = larger == std::end(kBodyClassBytes) || larger + 1 == std::end(kBodyClassBytes);
  const size_t bytes_max =
      last ? options_.inflated_bytes_max : std::min(*larger, options_.inflated_bytes_max);
  CallLater(
      large_, registry_, "large requests", std::move(call),
      [this, &route, bytes_max](Call later) {
        const Status status = Inflate(later, bytes_max);
        if (status.code() == StatusCode::kTooLarge && bytes_max < options_.inflated_bytes_max) {
          return CallLarge(route, std::move(later), true, bytes_max + 1);
        }
        if (!status.ok()) return later.reply->Send(ErrorResponse(FromStatus(status)));
        route.handler(std::move(later));
      },
      bytes_at_least);
}

void Service::Impl::CallInside(Call call) {
  const RouteTable::Match match = routes_.Find(call.request.method, call.request.path);
  MR_CHECK(match.route != nullptr) << call.request.path;
  CallRoute(*match.route, std::move(call), false);
}

// Replaces the body, or leaves it as it is.
Status Service::Impl::Inflate(Call& call, size_t bytes_max) {
  MR_ASSIGN_OR_RETURN(std::string plain, InflateGzip(call.request.body, bytes_max));
  call.request.body = std::move(plain);
  return OkStatus();
}

void Service::Impl::Ready(ServedModel model) {
  ParseContext context{
      .vocab_size = model.spec.vocab_size,
      .max_model_len = model.max_model_len,
      .embedding_size = model.spec.embedding_size,
      .defaults = model.defaults,
      .parse_special_default = options_.parse_special_in_prompts,
      .finds_tool_calls = model.tool_format != nullptr,
      .takes_templates = options_.takes_templates,
      .chat_template = model.chat_template ? model.chat_template->all_sources() : ""};
  auto made = std::shared_ptr<ModelContext>(
      new ModelContext{.model = model,
                       .context = std::move(context),
                       .metrics{options_.served_names.front(), model.max_model_len,
                                model.cache_config, options_.limits},
                       .registry = registry_,
                       .workers = workers_,
                       .clock = clock_,
                       .pings = pings_.get(),
                       .log = options_.request_log,
                       .created = std::time(nullptr),
                       .limits = options_.limits,
                       .refuse_beyond = options_.refuse_beyond});
  if (model.earlier != nullptr) RestoreStreams(made, *model.earlier);
  {
    MutexLock lock(mutex_);
    MR_CHECK(model_context_ == nullptr) << "Ready must be called only once";
    model_context_ = std::move(made);
    ServiceState loading = ServiceState::kLoading;
    state_.compare_exchange_strong(loading, ServiceState::kReady);
  }
  stored_.RunLeft();
  background_.Start();
}

bool Service::Impl::Drain(Duration limit) {
  BeginDrain();
  bool finished = true;
  if (std::shared_ptr<ModelContext> loaded = model_context())
    finished = loaded->model.engine->Drain(limit);
  registry_.WaitUntilIdle();
  return finished;
}

std::shared_ptr<ModelContext> Service::Impl::model_context() const {
  MutexLock lock(mutex_);
  return model_context_;
}

void Service::Impl::SetApiKeys(ApiKeys keys) {
  auto made = std::make_shared<const ApiKeys>(std::move(keys));
  MutexLock lock(mutex_);
  api_keys_ = std::move(made);
}

std::shared_ptr<const ApiKeys> Service::Impl::api_keys() const {
  MutexLock lock(mutex_);
  return api_keys_;
}

std::shared_ptr<ModelContext> Service::Impl::LoadedOrReply(const Call& call) const {
  std::shared_ptr<ModelContext> loaded = model_context();
  if (!loaded) call.Refuse(Unready("The model is still loading."));
  return loaded;
}

std::optional<std::string> Service::Impl::ServedName(const std::string& asked) const {
  const auto& names = options_.served_names;
  const auto& unlisted = options_.unlisted_names;
  if (asked.empty() || std::ranges::find(unlisted, asked) != unlisted.end()) return names.front();
  if (std::ranges::find(names, asked) == names.end()) return std::nullopt;
  return asked;
}

}  // namespace millrace::serve
