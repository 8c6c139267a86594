// Service::Impl: the state, the routes and the shared helpers of the handlers. Private to serve.
// Owned by the Service and by the handlers that it returned; any thread.
#pragma once

#include <atomic>
#include <memory>
#include <random>
#include <string>

#include "base/mutex.h"
#include "net/http/http.h"
#include "serve/answer/stream_keeper.h"
#include "serve/cluster_routes.h"
#include "serve/debug_routes.h"
#include "serve/generation/model_context.h"
#include "serve/generation/stream_pings.h"
#include "serve/http/body_pool.h"
#include "serve/http/router.h"
#include "serve/model_routes.h"
#include "serve/ollama_routes.h"
#include "serve/other_apis.h"
#include "serve/service.h"
#include "serve/stored/background_queue.h"
#include "serve/stored_routes.h"
#include "serve/text_routes.h"
#include "serve/vector_routes.h"
#include "text/tokenizer.h"

namespace millrace::serve {

struct GenerationSpec;

// A grammar that is not compiled yet is tried and compiled on threads of their own.
inline constexpr size_t kGrammarsWaitingMax = 64;
// Requests without a client.
inline constexpr int kBackgroundRunningMax = 64;
inline constexpr size_t kBackgroundWaitingMax = 10000;
inline constexpr Duration kBackgroundPause = Duration::Seconds(1);  // when there is no room

class Service::Impl {
 public:
  Impl(ServiceOptions options, const Clock& clock);

  void Handle(Endpoint endpoint, net::HttpRequest request, std::shared_ptr<net::HttpReply> reply);

  void Ready(ServedModel model);
  ServiceState state() const { return state_; }
  void SetApiKeys(ApiKeys keys);
  void BeginLeaving() { state_ = ServiceState::kLeaving; }
  void BeginDrain() { state_ = ServiceState::kDraining; }
  bool Drain(Duration limit);

 private:
  ChatRoutes RoutesForOthers();
  void AddRoutes();
  void Dispatch(Endpoint endpoint, Call call, const RouteTable::Match& match);
  // Sets the call's owner, or returns the error that refuses the call. Decides on the route that is
  // then called; a path that is not in the table is closed.
  std::optional<ApiError> Authorize(Endpoint endpoint, const RouteTable::Match& match,
                                    Call* call) const;
  // `gzip`: the body is compressed, and inflated first.
  void CallRoute(const Route& route, Call call, bool gzip);
  // On a thread of large_, of the class for that many bytes.
  void CallLarge(const Route& route, Call call, bool gzip, size_t bytes_at_least);
  static Status Inflate(Call& call, size_t bytes_max);
  // Calls the route of a request that the service makes itself.
  void CallInside(Call call);
  // The model_context, or null after sending the 503.
  std::shared_ptr<ModelContext> LoadedOrReply(const Call& call) const;
  std::shared_ptr<ModelContext> model_context() const;
  std::shared_ptr<const ApiKeys> api_keys() const;
  // The name to show, or nullopt for a model that is not served.
  std::optional<std::string> ServedName(const std::string& asked) const;

  std::string ResponseId(const std::string& prefix, const GenerationOptions& options);

  // routes_generation.cc
  void Completions(Call call);
  void Chat(Call call, const OrderedJson* made, std::shared_ptr<AnswerWriter> writer);
  // Returns true if the call asks for the rest of a stream; it has then been answered with that or
  // with an error. `writer`: of the client's API; null: OpenAI's form.
  bool Resumed(const Call& call, const std::shared_ptr<AnswerWriter>& writer);
  void ResumeStream(Call call);  // GET /v1/streams/{response id}
  void Begin(std::shared_ptr<ModelContext> model_context, Call call, GenerationSpec spec,
             const std::string& id);
  void BeginConstrained(std::shared_ptr<ModelContext> model_context, Call call, GenerationSpec spec,
                        const std::string& id);
  void BeginCompiled(std::shared_ptr<ModelContext> model_context, Call call, GenerationSpec spec,
                     const std::string& id);
  // restore.cc
  void RestoreStreams(const std::shared_ptr<ModelContext>& model_context,
                      cluster::RecoveredRequests& requests);
  // routes_info.cc
  void Health(Call call);
  void ReadyRoute(Call call);
  void Load(Call call);
  void Metrics(Call call);

  const ServiceOptions options_;
  const Clock& clock_;
  RouteTable routes_;
  VectorRoutes vectors_;
  OtherApis other_apis_;
  OllamaRoutes ollama_;
  TextRoutes text_;
  ModelRoutes models_;
  ClusterRoutes cluster_;
  DebugRoutes debug_;
  const std::unique_ptr<StreamKeeper> keeper_;       // null: streams end with their connection
  const std::unique_ptr<StreamPings> pings_;         // null: silent streams stay silent
  const std::shared_ptr<HttpMetrics> http_metrics_;  // shared with replies that outlive a call
  RequestRegistry registry_;
  std::atomic<ServiceState> state_ = ServiceState::kLoading;
  std::atomic<uint64_t> next_id_;
  const uint64_t trace_seed_ = (uint64_t{std::random_device()()} << 32) | std::random_device()();

  mutable Mutex mutex_;
  std::shared_ptr<ModelContext> model_context_ MR_GUARDED_BY(mutex_);  // set once
  std::shared_ptr<const ApiKeys> api_keys_ MR_GUARDED_BY(mutex_);      // never null

  WorkerPool workers_;    // streams
  WorkerPool compiling_;  // grammars
  BodyPool large_;        // parsing and tokenizing large bodies; the pools are last: joined first
  StoredRoutes stored_;
  BackgroundQueue background_;  // its thread uses all of these
};

// `prefix`, such as "cmpl-", and 32 hexadecimal digits that are unique to this process and number.
std::string NewId(const std::string& prefix, uint64_t number);
int64_t UnixSeconds();

// What tokens are for: how many are wanted, and by whom.
struct EncodeUse {
  Truncation truncation = {};              // Truncate cuts a text with more tokens
  const net::HttpReply* client = nullptr;  // when it has left, the work ends
  bool shown = false;                      // only counted or shown: more than the model's context
};

// Convert to token ids; errors of EncodeText name the field `param`. A text that is too long is
// refused, or tokenized as far as Truncate keeps it.
Parsed<std::vector<TokenId>> EncodeText(const ServedModel& model, const std::string& text,
                                        const text::EncodeOptions& options,
                                        const std::string& param, const EncodeUse& use);
// Cuts a prompt as the request asks; `room` is what the model's length leaves for it, in tokens.
void Truncate(const Truncation& truncation, int room, std::vector<TokenId>& tokens);
// The prompt of a conversation, and its tokens.
// For SamplingParams::bad_words: each word as it begins a text, and as it follows a space.
Parsed<std::vector<std::vector<TokenId>>> BadWordTokens(const ServedModel& model,
                                                        const std::vector<std::string>& words);
// For a status of ChatTemplate::Render: names the field of the request that the template failed at,
// if it can be told. `own`: the template is the request's.
ApiError TemplateError(const Status& status, const Conversation& conversation, bool own);
Parsed<std::string> RenderConversation(const ServedModel& model, const Conversation& conversation);
Parsed<std::vector<TokenId>> EncodeRendered(const ServedModel& model, const std::string& prompt,
                                            const EncodeUse& use);
Parsed<std::vector<TokenId>> EncodeConversation(const ServedModel& model,
                                                const Conversation& conversation,
                                                const EncodeUse& use);

}  // namespace millrace::serve
