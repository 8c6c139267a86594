// ollama's /api/chat and /api/generate as chat requests (ollama_writer.h has the answers). Likewise
// /api/embed, and its older form /api/embeddings, as requests of /v1/embeddings. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "serve/apis/chat_translation.h"

namespace millrace::serve {

enum class OllamaRoute { kChat, kGenerate };
enum class OllamaEmbedRoute { kEmbed, kEmbeddings };

struct OllamaContext {
  OllamaRoute route = OllamaRoute::kChat;
  bool reasons = true;  // the model does, as far as is known
};

// What a request without messages, or with an empty prompt, asks for.
struct OllamaLoad {
  std::string model;
  bool unload = false;
  std::string ignored;  // IgnoredHeaderValue
};

struct OllamaRequest {
  TranslatedRequest chat;
  std::optional<OllamaLoad> load;  // in place of `chat`
};
Parsed<OllamaRequest> ReadOllamaRequest(std::string_view body, const OllamaContext& context);
// The answer to `load`. The model is loaded, and stays so.
Json OllamaLoadAnswer(const std::string& model, int64_t unix_s, const OllamaLoad& load,
                      OllamaRoute route);

// A body of POST /v1/embeddings.
Parsed<TranslatedRequest> EmbeddingOfOllama(std::string_view body, OllamaEmbedRoute route);

// From the answer of /v1/embeddings. `took_ns`: since the request came.
Json OllamaEmbedAnswer(const Json& answer, OllamaEmbedRoute route, int64_t took_ns);

struct OllamaShow {
  std::string model;
  std::string ignored;  // IgnoredHeaderValue
};
Parsed<OllamaShow> ReadOllamaShow(std::string_view body);

// The name of a served model without ollama's usual tag.
std::string WithoutLatest(std::string name);
// "2026-01-31T12:00:00Z".
std::string OllamaTime(int64_t unix_s);

// {"error": message}.
Json OllamaError(const ApiError& error);

}  // namespace millrace::serve
