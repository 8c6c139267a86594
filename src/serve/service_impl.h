// Service::Impl: the state, the routes and the shared helpers of the handlers. Private to serve.
// Owned by the Service and by the handlers that it returned; any thread.
#pragma once

#include <atomic>
#include <memory>
#include <random>
#include <string>

#include "base/mutex.h"
#include "net/http.h"
#include "serve/cluster_admin.h"
#include "serve/model_context.h"
#include "serve/other_apis.h"
#include "serve/router.h"
#include "serve/service.h"
#include "serve/stream_keeper.h"
#include "text/tokenizer.h"

namespace millrace::serve {

struct GenerationSpec;

// Bodies up to this size are parsed and tokenized on the I/O thread, in about a millisecond. A
// separate thread handles larger ones.
inline constexpr size_t kInlineBodyBytesMax = 16 << 10;
inline constexpr size_t kLargeBodiesWaitingMax = 64;
// A grammar that is not compiled yet is tried and compiled on threads of their own.
inline constexpr size_t kGrammarsWaitingMax = 64;

class Service::Impl {
 public:
  Impl(ServiceOptions options, const Clock& clock);

  void Handle(Endpoint endpoint, net::HttpRequest request, std::shared_ptr<net::HttpReply> reply);

  void Ready(ServedModel model);
  ServiceState state() const { return state_; }
  void BeginDrain() { state_ = ServiceState::kDraining; }
  bool Drain(Duration limit);

 private:
  void AddRoutes();
  void Dispatch(Endpoint endpoint, Call call, const RouteTable::Match& match);
  // Sets the call's owner, or returns the error that refuses the call. Decides on the route that is
  // then called; a path that is not in the table is closed.
  std::optional<ApiError> Authorize(Endpoint endpoint, const RouteTable::Match& match,
                                    Call* call) const;
  void CallRoute(const Route& route, Call call);
  // The model_context, or null after sending the 503.
  std::shared_ptr<ModelContext> LoadedOrReply(const Call& call) const;
  std::shared_ptr<ModelContext> model_context() const;
  // The name to show, or nullopt for a model that is not served.
  std::optional<std::string> ServedName(const std::string& asked) const;

  std::string ResponseId(const std::string& prefix, const GenerationOptions& options);

  // routes_generation.cc
  void Completions(Call call);
  void ChatCompletions(Call call);
  // Returns true if the call asks for the rest of a stream; it has then been answered with that or
  // with an error.
  bool Resumed(const Call& call);
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
  // routes_text.cc
  void Tokenize(Call call);
  void Detokenize(Call call);
  void ApplyTemplate(Call call);
  // routes_info.cc
  void Models(Call call);
  void OneModel(Call call);
  void Health(Call call);
  void ReadyRoute(Call call);
  void Version(Call call);
  void Load(Call call);
  void Metrics(Call call);
  void DebugRequests(Call call);
  void DebugRequest(Call call);
  // routes_cluster.cc
  void ClusterStatus(Call call);
  void ClusterMachines(Call call);
  void ClusterDecisions(Call call);
  void ClusterPlan(Call call);
  void ClusterDrain(Call call);
  void ClusterMigrate(Call call);
  ClusterAdmin* AdminOrReply(const Call& call) const;
  void AnswerWithModel(const Call& call, Json body) const;
  void AnswerAdmin(const Call& call, const Status& status, const char* param) const;
  Json DescribeRequest(const RegistryEntry& entry, const ModelContext* model_context) const;

  const ServiceOptions options_;
  const Clock& clock_;
  RouteTable routes_;
  OtherApis other_apis_;
  const std::unique_ptr<StreamKeeper> keeper_;       // null: streams end with their connection
  const std::shared_ptr<HttpMetrics> http_metrics_;  // shared with replies that outlive a call
  RequestRegistry registry_;
  std::atomic<ServiceState> state_ = ServiceState::kLoading;
  std::atomic<uint64_t> next_id_;
  const uint64_t trace_seed_ = (uint64_t{std::random_device()()} << 32) | std::random_device()();

  mutable Mutex mutex_;
  std::shared_ptr<ModelContext> model_context_ MR_GUARDED_BY(mutex_);  // set once

  WorkerPool workers_;    // streams
  WorkerPool compiling_;  // grammars
  WorkerPool large_;      // parsing and tokenizing large bodies; the pools are last: joined first
};

// `prefix`, such as "cmpl-", and 32 hexadecimal digits that are unique to this process and number.
std::string NewId(const std::string& prefix, uint64_t number);

// Convert to token ids; errors of EncodeText name the field `param`.
Parsed<std::vector<TokenId>> EncodeText(const ServedModel& model, const std::string& text,
                                        const text::EncodeOptions& options,
                                        const std::string& param);
// The prompt of a conversation, and its tokens.
Parsed<std::string> RenderConversation(const ServedModel& model, const Conversation& conversation);
Parsed<std::vector<TokenId>> EncodeRendered(const ServedModel& model, const std::string& prompt);
Parsed<std::vector<TokenId>> EncodeConversation(const ServedModel& model,
                                                const Conversation& conversation);

}  // namespace millrace::serve
