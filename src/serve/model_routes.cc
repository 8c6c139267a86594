#include "serve/model_routes.h"

#include <algorithm>
#include <utility>

#include "serve/http/api_error.h"
#include "serve/http/openapi.h"

namespace millrace::serve {
namespace {

Json ModelCard(const std::string& name, const std::string& root, const ServedModel& model,
               int64_t created) {
  return {{"id", name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "millrace"},
          {"root", root},
          {"parent", nullptr},
          {"max_model_len", model.max_model_len}};
}

}  // namespace

void ModelRoutes::AddTo(RouteTable& table) {
  const auto add = [&](const char* method, const char* path, Access access,
                       void (ModelRoutes::*member)(Call), PathKind kind = PathKind::kExact) {
    table.Add({method, path, access,
               [this, member](Call call) { (this->*member)(std::move(call)); }, kind});
  };
  add("GET", "/v1/models", Access::kKeyed, &ModelRoutes::Models);
  add("GET", "/v1/models/", Access::kKeyed, &ModelRoutes::OneModel, PathKind::kPrefix);
  add("GET", "/server_info", Access::kKeyed, &ModelRoutes::ServerInfo);
  add("GET", "/openapi.json", Access::kOpen, &ModelRoutes::OpenApi);
  add("GET", "/version", Access::kOpen, &ModelRoutes::Version);
  add("GET", "/api/version", Access::kOpen, &ModelRoutes::Version);
}

void ModelRoutes::Models(Call call) {
  std::shared_ptr<ModelContext> loaded = host_.loaded(call);
  if (!loaded) return;
  Json list = Json::array();
  for (const std::string& name : names_) {
    list.push_back(ModelCard(name, names_.front(), loaded->model, loaded->created));
  }
  call.reply->Send(JsonResponse({{"object", "list"}, {"data", std::move(list)}}));
}

void ModelRoutes::OneModel(Call call) {
  std::shared_ptr<ModelContext> loaded = host_.loaded(call);
  if (!loaded) return;
  if (std::ranges::find(names_, call.rest) == names_.end()) {
    return call.reply->Send(ErrorResponse(ModelNotFound(call.rest)));
  }
  call.reply->Send(
      JsonResponse(ModelCard(call.rest, names_.front(), loaded->model, loaded->created)));
}

// What this server can do, for people and for programs that choose among servers.
void ModelRoutes::ServerInfo(Call call) {
  const std::shared_ptr<ModelContext> loaded = host_.loaded(call);
  if (!loaded) return;
  const ServedModel& model = loaded->model;
  const auto name = [](const auto* format) {
    return format != nullptr ? Json(std::string(format->name)) : Json();
  };
  call.reply->Send(JsonResponse({{"version", version_},
                                 {"models", names_},
                                 {"max_model_len", model.max_model_len},
                                 {"vocab_size", model.spec.vocab_size},
                                 {"num_layers", model.spec.num_layers},
                                 {"cache_config", model.cache_config},
                                 {"chat", model.chat_template != nullptr},
                                 {"tool_call_parser", name(model.tool_format)},
                                 {"reasoning_parser", name(model.reasoning_format)},
                                 {"constrained_output", model.grammars.ok()},
                                 {"resumable_streams", resumable_}}));
}

void ModelRoutes::OpenApi(Call call) {
  call.reply->Send(JsonResponse(OpenApiDocument(version_, root_path_)));
}

void ModelRoutes::Version(Call call) { call.reply->Send(JsonResponse({{"version", version_}})); }

}  // namespace millrace::serve
