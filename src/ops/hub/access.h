// HubAccess: where the hub is and how this user may call it, from the environment variables that
// the hub's own tools read. Plain data; any thread.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "model/hub_cache.h"
#include "net/url.h"

namespace millrace::ops {

struct HubAccess {
  net::Url endpoint;                       // $HF_ENDPOINT
  std::string token;                       // empty: none. A secret: never in a message or a log.
  std::string authorities;                 // a PEM file; empty: the system's
  Duration stall = Duration::Seconds(30);  // slower than a trickle for this long: a lost connection
};

// kInvalidArgument names the variable that is wrong.
Result<HubAccess> ReadHubAccess(const model::Environment& environment);

// $HF_HUB_OFFLINE.
bool IsOffline(const model::Environment& environment);

// Whether bytes of a model may come from there: with TLS, or over the loopback interface.
bool IsSafe(const net::Url& url);
// Whether both are the same scheme, host and port: a token for one may be sent to the other.
bool SameOrigin(const net::Url& a, const net::Url& b);

}  // namespace millrace::ops
