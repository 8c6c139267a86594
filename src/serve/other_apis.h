// OtherApis: the routes of Anthropic's Messages API, answered by the chat route: POST /v1/messages
// and /v1/messages/count_tokens. ollama_routes.h has those under /api, and
// stored/response_routes.h has /v1/responses. Owned by the service; any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/answer/answer_writer.h"
#include "serve/apis/chat_translation.h"
#include "serve/generation/model_context.h"
#include "serve/http/router.h"
#include "serve/vector_routes.h"

namespace millrace::serve {

// What the service does for them.
struct ChatRoutes {
  // Answer a chat request, or one for embeddings, that was made of another API's.
  std::function<void(Call, const OrderedJson& chat, std::shared_ptr<AnswerWriter>)> chat;
  std::function<void(Call, const OrderedJson& body, const VectorForm&)> embeddings;
  // The loaded model, or null after a 503 has been sent.
  std::function<std::shared_ptr<ModelContext>(const Call&)> loaded;
  // The same, without an answer.
  std::function<std::shared_ptr<ModelContext>()> loaded_now;
  std::function<std::string(const std::string& prefix)> new_id;
  // As of Service::Impl::ServedName.
  std::function<std::optional<std::string>(const std::string&)> served_name;
  std::vector<std::string> names;  // that are served
};

// Whether the model is known to reason, or is not known yet.
bool ModelReasons(const ChatRoutes& routes);

class OtherApis {
 public:
  explicit OtherApis(ChatRoutes routes) : routes_(std::move(routes)) {}
  // The table's handlers refer to this.
  void AddTo(RouteTable& table);

 private:
  void Messages(Call call);
  void CountMessageTokens(Call call);

  const ChatRoutes routes_;
};

}  // namespace millrace::serve
