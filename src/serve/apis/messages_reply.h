// Anthropic's Messages API over the chat route: the chat route's answers in its form. MessagesReply
// is a reply (translated_reply.h) and belongs to one call; MessagesError is pure.
#pragma once

#include <optional>
#include <string>

#include "serve/apis/translated_reply.h"

namespace millrace::serve {

// {"type": "error", "error": {"type", "message"}}.
Json MessagesError(const Json& error, int status);

class MessagesReply : public TranslatedReply {
 public:
  using TranslatedReply::TranslatedReply;

 protected:
  Json Error(const Json& error, int status) override { return MessagesError(error, status); }
  Json Whole(const Json& answer) override;
  std::string Chunk(const Json& chunk) override;
  std::string Done() override;
  std::string StreamError(const Json& error) override;
  std::string Ping() const override;

 private:
  enum class Block { kNone, kText, kThinking, kToolUse };
  std::string Begin(const Json& chunk);
  std::string Open(Block block, Json content);
  std::string Close();
  std::string AddText(Block block, const std::string& text);
  std::string AddCall(const Json& call);
  int index() const { return blocks_ - 1; }  // of the newest block

  bool begun_ = false;
  Block block_ = Block::kNone;  // that is open
  int blocks_ = 0;              // that have been opened
  std::optional<int> call_;     // of the chat's calls, the one that is open
  Json finish_reason_, stop_reason_;
  Json usage_ = Json::object();  // the newest
};

}  // namespace millrace::serve
