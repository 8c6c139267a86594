#include "serve/cluster_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <variant>
#include <vector>

#include "base/log.h"
#include "plan/io/plan_yaml.h"
#include "serve/http/limits.h"
#include "serve/request/field_reader.h"

namespace millrace::serve {
namespace {

constexpr size_t kPlanBytesMax = 8 << 20;

ApiError NoCluster() {
  return {.status = 404,
          .message =
              "This server runs the model in its own process and has no cluster; a controller "
              "(millrace up, millrace serve --cluster) has one.",
          .code = "no_cluster"};
}

ApiError FromAdmin(const Status& status, std::string param) {
  // Only operators see these errors, so they include the internal reason.
  if (status.code() == StatusCode::kFailedPrecondition) {
    return {.status = 409,
            .message = status.message(),
            .param = std::move(param),
            .code = "failed_precondition"};
  }
  return FromStatus(status, std::move(param));
}

Parsed<Json> ObjectOf(const std::string& body) {
  auto parsed = ParseJson(body);
  if (!parsed.ok())
    return ApiError{.message = "The body must be JSON: " + parsed.status().message()};
  if (!parsed->is_object()) return ApiError{.message = "The body must be a JSON object."};
  return std::move(parsed).value();
}

// A required string of a body.
struct Field {
  const char* name;
  size_t max_bytes;
  std::string* value;
};

// False after sending the error.
bool ReadOrReply(const Call& call, std::initializer_list<Field> fields) {
  Parsed<Json> body = ObjectOf(call.request.body);
  if (auto* error = std::get_if<ApiError>(&body)) {
    call.reply->Send(ErrorResponse(*error));
    return false;
  }
  FieldReader reader(std::get<Json>(body));
  for (const auto& [name, max_bytes, value] : fields) {
    if (reader.Find(name) == nullptr && !reader.failed()) {
      reader.Fail(name, std::string(name) + " is required");
    }
    reader.String(name, max_bytes, *value);
  }
  if (!reader.failed()) return true;
  call.reply->Send(ErrorResponse(*reader.error()));
  return false;
}

Json Done() { return {{"status", "ok"}}; }

}  // namespace

ClusterRoutes::ClusterRoutes(ChatRoutes routes, std::string loaded_from,
                             const RequestRegistry& registry)
    : routes_(std::move(routes)), loaded_from_(std::move(loaded_from)), registry_(registry) {}

void ClusterRoutes::AddTo(RouteTable& table) {
  const auto add = [&](const char* method, const char* path, void (ClusterRoutes::*member)(Call)) {
    table.Add({.method = method,
               .path = path,
               .access = Access::kAdmin,
               .handler = [this, member](Call call) { (this->*member)(std::move(call)); }});
  };
  add("GET", "/cluster/status", &ClusterRoutes::ShowStatus);
  add("GET", "/cluster/machines", &ClusterRoutes::ShowMachines);
  add("GET", "/cluster/decisions", &ClusterRoutes::ShowDecisions);
  add("POST", "/cluster/plan", &ClusterRoutes::ApplyPlan);
  add("POST", "/cluster/drain", &ClusterRoutes::DrainWorker);
  add("POST", "/cluster/migrate", &ClusterRoutes::MigrateRequest);
}

bool ClusterRoutes::Serves(std::string_view planned) const {
  const auto leaf = [](std::string_view name) {
    while (name.ends_with('/')) name.remove_suffix(1);
    return name.substr(name.find_last_of('/') + 1);
  };
  const auto is = [&](const std::string& name) { return leaf(name) == leaf(planned); };
  return std::ranges::any_of(routes_.names, is) || is(loaded_from_);
}

ClusterAdmin* ClusterRoutes::AdminOrReply(const Call& call) const {
  const std::shared_ptr<ModelContext> loaded = routes_.loaded(call);
  if (!loaded) return nullptr;
  if (loaded->model.cluster == nullptr) call.reply->Send(ErrorResponse(NoCluster()));
  return loaded->model.cluster;
}

void ClusterRoutes::AnswerWithModel(const Call& call, Json body) const {
  body["model"] = routes_.names.front();
  call.reply->Send(JsonResponse(body));
}

void ClusterRoutes::ShowStatus(Call call) {
  if (ClusterAdmin* admin = AdminOrReply(call)) AnswerWithModel(call, admin->Describe());
}

void ClusterRoutes::ShowMachines(Call call) {
  if (ClusterAdmin* admin = AdminOrReply(call)) AnswerWithModel(call, admin->Machines());
}

void ClusterRoutes::ShowDecisions(Call call) {
  if (ClusterAdmin* admin = AdminOrReply(call)) AnswerWithModel(call, admin->Decisions());
}

void ClusterRoutes::AnswerAdmin(const Call& call, const Status& status, const char* param) const {
  if (!status.ok()) return call.reply->Send(ErrorResponse(FromAdmin(status, param)));
  MR_LOG(info, "{} by {}: {}", call.request.path, Printable(call.request.peer, 64), "accepted");
  call.reply->Send(JsonResponse(Done()));
}

void ClusterRoutes::ApplyPlan(Call call) {
  ClusterAdmin* admin = AdminOrReply(call);
  if (admin == nullptr) return;
  auto refuse = [&call](const ApiError& error) { call.reply->Send(ErrorResponse(error)); };
  std::string text;
  if (!ReadOrReply(call, {{"plan", kPlanBytesMax, &text}})) return;
  auto plan = plan::ParseWorkerPlan(text, "plan");
  if (!plan.ok()) return refuse(BadField("plan", plan.status().message()));
  if (!Serves(plan->plan.model)) {
    const std::string& served = routes_.names.front();
    return refuse(BadField(
        "plan", fmt::format("the plan is for the model {}, and this server serves {}; if it is "
                            "meant for that one, write `model: {}` into it",
                            Printable(plan->plan.model), Printable(served), Printable(served))));
  }
  AnswerAdmin(call, admin->ApplyPlan(*std::move(plan), std::move(text)).status(), "plan");
}

void ClusterRoutes::DrainWorker(Call call) {
  ClusterAdmin* admin = AdminOrReply(call);
  if (admin == nullptr) return;
  std::string worker;
  if (!ReadOrReply(call, {{"worker", kNameBytesMax, &worker}})) return;
  AnswerAdmin(call, admin->Drain(worker), "worker");
}

void ClusterRoutes::MigrateRequest(Call call) {
  ClusterAdmin* admin = AdminOrReply(call);
  if (admin == nullptr) return;
  auto refuse = [&call](const ApiError& error) { call.reply->Send(ErrorResponse(error)); };
  std::string request, worker;
  if (!ReadOrReply(call,
                   {{"request", kNameBytesMax, &request}, {"worker", kNameBytesMax, &worker}}))
    return;
  std::vector<RequestId> running;
  for (const RegistryEntry& entry : registry_.Find(request)) {
    if (entry.finish_reason.empty()) running.push_back(entry.id);
  }
  if (running.size() == 1) return AnswerAdmin(call, admin->Migrate(running[0], worker), "");
  ApiError error{.status = 404,
                 .message = fmt::format("No request '{}' is running; GET /debug/requests lists "
                                        "the running ones.",
                                        Printable(request, 64)),
                 .param = "request",
                 .code = "request_not_found"};
  if (!running.empty()) {
    error.status = 409;
    error.code = "request_ambiguous";
    error.message = fmt::format(
        "'{}' matches {} running requests; give the number of one of them, "
        "such as {}.",
        Printable(request, 64), running.size(), running[0].value());
  }
  refuse(error);
}

}  // namespace millrace::serve
