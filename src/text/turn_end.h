// TurnEnd: the special token that a chat template writes right after an assistant's message, such
// as "<|im_end|>" or "<|eot_id|>". A model that was trained with the template ends its turn with
// it, also when no file of the folder names it as an end token. A pure function; any thread.
#pragma once

#include <optional>

#include "core/ids.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace millrace::text {

// nullopt: no special token follows, or the template refuses a plain conversation.
std::optional<TokenId> TurnEnd(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

}  // namespace millrace::text
