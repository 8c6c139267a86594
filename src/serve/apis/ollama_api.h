// ollama's /api/chat and /api/generate over the chat route: requests to chat requests, answers back
// as JSON lines. Likewise /api/embed, and its older form /api/embeddings, over /v1/embeddings.
// Pure, apart from the replies (translated_reply.h); any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "serve/apis/chat_translation.h"
#include "serve/apis/translated_reply.h"

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

struct OllamaShow {
  std::string model;
  std::string ignored;  // IgnoredHeaderValue
};
Parsed<OllamaShow> ReadOllamaShow(std::string_view body);

// The name of a served model without ollama's usual tag.
std::string WithoutLatest(std::string name);
// "2026-01-31T12:00:00Z".
std::string OllamaTime(int64_t unix_s);

class OllamaReply : public TranslatedReply {
 public:
  OllamaReply(std::shared_ptr<net::HttpReply> inner, const TranslatedRequest& request,
              OllamaRoute route)
      : TranslatedReply(std::move(inner), request.ignored, request.names), route_(route) {}

 protected:
  Json Error(const Json& error, int status) override;
  Json Whole(const Json& answer) override;
  std::string Chunk(const Json& chunk) override;
  std::string Done() override;
  std::string StreamError(const Json& error) override;
  std::string Ping() const override { return ""; }
  const char* StreamType() const override { return "application/x-ndjson"; }

 private:
  Json Line(const Json& answer, const std::string& content, const std::string& thinking,
            const Json& calls) const;
  Json Last(Json line) const;

  const OllamaRoute route_;
  Json head_;   // of the last chunk: model, created
  Json calls_;  // of the stream so far, by index
  Json finish_reason_, usage_;
  Json metrics_;  // what the time went into
};

// Of requests that are never streams.
class OllamaEmbedReply : public TranslatedReply {
 public:
  OllamaEmbedReply(std::shared_ptr<net::HttpReply> inner, const TranslatedRequest& request,
                   OllamaEmbedRoute route)
      : TranslatedReply(std::move(inner), request.ignored, request.names), route_(route) {}

 protected:
  Json Error(const Json& error, int status) override;
  Json Whole(const Json& answer) override;
  std::string Chunk(const Json&) override { return ""; }
  std::string Done() override { return ""; }
  std::string StreamError(const Json&) override { return ""; }

 private:
  const OllamaEmbedRoute route_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

}  // namespace millrace::serve
