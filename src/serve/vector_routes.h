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
#include "serve/request/field_names.h"
#include "serve/request/request.h"

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

// Embeddings in the form of another API, whose request was made one for /v1/embeddings.
struct VectorForm {
  FieldNames names;     // as AnswerWriter
  std::string ignored;  // as AnswerWriter
  // The body of the answer, from that of /v1/embeddings; empty: the same.
  std::function<Json(const Json& answer)> answer;
};

class VectorRoutes {
 public:
  explicit VectorRoutes(VectorRoutesHost host) : host_(std::move(host)) {}
  // The table's handlers refer to this.
  void AddTo(RouteTable& table);
  // `body`: as it was made of another API's request.
  void Embeddings(Call call, const OrderedJson& body, const VectorForm& form);

 private:
  void OwnEmbeddings(Call call);
  void Score(Call call);
  void Rerank(Call call);
  // Answers a call with what is computed from the vectors of its texts. `made`: in place of the
  // call's body.
  template <typename Request>
  void Make(Call call, const char* id_prefix,
            Parsed<Request> (*parse)(const Json& body, const ParseContext& context),
            Json (*answer)(const Request& request, std::vector<std::vector<float>> vectors),
            const OrderedJson* made = nullptr, const VectorForm& form = {});

  const VectorRoutesHost host_;
};

}  // namespace millrace::serve
