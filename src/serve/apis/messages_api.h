// Anthropic's Messages API over the chat route: its requests as chat requests (messages_reply.h has
// the answers). Pure; any thread.
#pragma once

#include <string_view>

#include "serve/apis/chat_translation.h"

namespace millrace::serve {

struct MessagesContext {
  bool count_only = false;  // /v1/messages/count_tokens, which needs no max_tokens
  bool reasons = true;      // the model does, as far as is known
};

// A body of POST /v1/messages as one of POST /v1/chat/completions.
Parsed<TranslatedRequest> ChatOfMessages(std::string_view body, const MessagesContext& context);

}  // namespace millrace::serve
