// ollama's /api/chat and /api/generate over the chat route: requests to chat requests, answers back
// as JSON lines. Likewise /api/embed, and its older form /api/embeddings, over /v1/embeddings.
// Pure, apart from the replies (translated_reply.h); any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "serve/chat_translation.h"
#include "serve/translated_reply.h"

namespace millrace::serve {

enum class OllamaRoute { kChat, kGenerate };
enum class OllamaEmbedRoute { kEmbed, kEmbeddings };

Parsed<TranslatedRequest> ChatOfOllama(std::string_view body, OllamaRoute route);
// A body of POST /v1/embeddings.
Parsed<TranslatedRequest> EmbeddingOfOllama(std::string_view body, OllamaEmbedRoute route);

// The name of a served model without ollama's usual tag.
std::string WithoutLatest(std::string name);

class OllamaReply : public TranslatedReply {
 public:
  OllamaReply(std::shared_ptr<net::HttpReply> inner, std::string ignored, OllamaRoute route)
      : TranslatedReply(std::move(inner), std::move(ignored)), route_(route) {}

 protected:
  Json Error(const Json& error, int status) override;
  Json Whole(const Json& answer) override;
  std::string Chunk(const Json& chunk) override;
  std::string Done() override;
  std::string StreamError(const Json& error) override;
  bool HasComments() const override { return false; }
  const char* StreamType() const override { return "application/x-ndjson"; }

 private:
  Json Line(const Json& answer, const std::string& content, const std::string& thinking,
            const Json& calls) const;
  Json Last(Json line) const;

  const OllamaRoute route_;
  Json head_;   // of the last chunk: model, created
  Json calls_;  // of the stream so far, by index
  Json finish_reason_, usage_;
};

// Of requests that are never streams.
class OllamaEmbedReply : public TranslatedReply {
 public:
  OllamaEmbedReply(std::shared_ptr<net::HttpReply> inner, std::string ignored,
                   OllamaEmbedRoute route)
      : TranslatedReply(std::move(inner), std::move(ignored)), route_(route) {}

 protected:
  Json Error(const Json& error, int status) override;
  Json Whole(const Json& answer) override;
  std::string Chunk(const Json&) override { return ""; }
  std::string Done() override { return ""; }
  std::string StreamError(const Json&) override { return ""; }

 private:
  const OllamaEmbedRoute route_;
};

}  // namespace millrace::serve
