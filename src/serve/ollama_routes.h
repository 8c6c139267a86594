// OllamaRoutes: ollama's API under /api, and its greeting at /. Chats and embeddings are answered
// by the routes of OpenAI's form; what describes the model is answered here. The one model is
// loaded for as long as the server runs, so what would load, change or remove models has no effect
// or is refused. Owned by the service; any thread.
#pragma once

#include <utility>

#include "serve/apis/ollama_api.h"
#include "serve/other_apis.h"

namespace millrace::serve {

class OllamaRoutes {
 public:
  explicit OllamaRoutes(ChatRoutes routes) : routes_(std::move(routes)) {}
  // The table's handlers refer to this.
  void AddTo(RouteTable& table);

 private:
  void Generate(Call call, OllamaRoute route);
  void Load(Call call, OllamaRoute route, const OllamaLoad& load);
  void Embed(Call call, OllamaEmbedRoute route);
  void Tags(Call call);
  void Running(Call call);
  void Show(Call call);

  const ChatRoutes routes_;
};

}  // namespace millrace::serve
