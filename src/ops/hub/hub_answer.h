// What an answer of the hub says: header lines into a HubHead, refusals into a Status with the
// cure. Pure; any thread.
#pragma once

#include <string_view>

#include "ops/hub/hub_client.h"

namespace millrace::ops {

// Takes a line "Name: value". `from_hub`: it is the hub's own answer, not of its storage.
void TakeHubHeader(std::string_view line, bool from_hub, HubHead& head);

// The error for an answer that is neither 2xx nor a redirect.
Status RefusalOf(const HubHead& head, const HubCall& call, const HubAccess& access);

}  // namespace millrace::ops
