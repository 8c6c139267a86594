// ModelRoutes: what is served and what it can do: GET /v1/models, /v1/models/{id}, /server_info,
// /openapi.json, /version, and ollama's /api/version. Owned by the service; any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "serve/http/router.h"
#include "serve/other_apis.h"

namespace millrace::serve {

class ModelRoutes {
 public:
  // `resumable`: streams can be.
  ModelRoutes(ChatRoutes host, std::string version, std::string root_path, bool resumable)
      : host_(std::move(host)),
        names_(host_.names),
        version_(std::move(version)),
        root_path_(std::move(root_path)),
        resumable_(resumable) {}
  // The table's handlers refer to this.
  void AddTo(RouteTable& table);

 private:
  void Models(Call call);
  void OneModel(Call call);
  void ServerInfo(Call call);
  void OpenApi(Call call);
  void Version(Call call);

  const ChatRoutes host_;
  const std::vector<std::string> names_;
  const std::string version_;
  const std::string root_path_;
  const bool resumable_;
};

}  // namespace millrace::serve
