// What the time of a request went into, as text for people: the "account" of an answer of GET
// /debug/requests/{id}. A field that another version of the server omits or sends with another type
// is empty, not an error. Pure; any thread.
#pragma once

#include <string>

#include "base/json.h"

namespace millrace::apps {

// "78 % of 4.2 s was queueing behind 31 requests: KV blocks were full. Cure: ...". `request`: an
// object of the answer. Empty if it has no account.
std::string AccountVerdict(const Json& request);
// The request, a line per entry with a bar in proportion, the longest gaps between its tokens, and
// the verdict. Text from the server is made printable.
std::string FormatAccount(const Json& request);
// Requests with their times and verdicts, a line each.
std::string FormatSlowest(const Json& answer);

}  // namespace millrace::apps
