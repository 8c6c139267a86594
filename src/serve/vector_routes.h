// VectorRoutes: POST /v1/embeddings, and what is computed from vectors: /v1/score and /v1/rerank.
// Owned by the service; any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/generation/model_context.h"
#include "serve/http/router.h"

namespace millrace::serve {

// What the service does for them.
struct VectorRoutesHost {
  // The loaded model, or null after a 503 has been sent.
  std::function<std::shared_ptr<ModelContext>(const Call&)> loaded;
  std::function<bool()> draining;
  // As of Service::Impl::ServedName.
  std::function<std::optional<std::string>(const std::string&)> served_name;
  std::function<std::string(const std::string& prefix)> new_id;
};

class VectorRoutes {
 public:
  explicit VectorRoutes(VectorRoutesHost host) : host_(std::move(host)) {}
  // The table's handlers refer to this.
  void AddTo(RouteTable& table);
  void Embeddings(Call call);

 private:
  void Score(Call call);
  void Rerank(Call call);
  // Answers a call with what is computed from the vectors of its texts.
  template <typename Request>
  void Make(Call call, const char* id_prefix,
            Parsed<Request> (*parse)(std::string_view body, const ParseContext& context),
            Json (*answer)(const Request& request, std::vector<std::vector<float>> vectors));

  const VectorRoutesHost host_;
};

}  // namespace millrace::serve
