// The ids of tool calls, in the form that a model's family prescribes: those of new calls, and
// those of earlier ones, which may come from another server. Pure functions; any thread.
#pragma once

#include <string>

#include "text/tool_format.h"

namespace millrace::serve {

// The id of a new call. It follows from the arguments alone, so it is the same after a restart of
// the server. `number`: of the call, counted over the conversation if ids are numbered.
std::string NewCallId(text::CallIds ids, const std::string& response_id, int choice, int number,
                      const std::string& name);

struct CallHistory {
  std::string messages;  // with ids of the form
  int calls = 0;         // the number of the next call
};

// Gives each call of `messages` (Conversation::messages) an id of the form, and its result the same
// one. Ids that have the form stay. A result without an id belongs to the first call that has none
// yet, and that has its name if it names one.
CallHistory WithCallIds(const std::string& messages, text::CallIds ids);

}  // namespace millrace::serve
