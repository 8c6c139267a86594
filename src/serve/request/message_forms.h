// A conversation with tool calls in the other forms that chat templates want: some put arguments
// together as texts, some need objects, and some take one call in a message. Pure functions; any
// thread.
#pragma once

#include <string>
#include <vector>

namespace millrace::serve {

// The other forms of `messages` (Conversation::messages), for a template that refuses them as they
// are. Empty: no message has a call.
std::vector<std::string> OtherMessageForms(const std::string& messages);

}  // namespace millrace::serve
