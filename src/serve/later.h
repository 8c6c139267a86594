// CallLater: handles a call on a thread of a pool instead of the I/O thread. Any thread.
#pragma once

#include <functional>

#include "serve/http/body_pool.h"
#include "serve/http/router.h"
#include "serve/observe/request_registry.h"

namespace millrace::serve {

// Runs the task with the call, unless its client has left by then; answers with a 429 if too many
// of `what`, such as "large requests", wait. Draining waits for it. `bytes_at_least`: the body is
// compressed and known to be larger.
void CallLater(BodyPool& pool, RequestRegistry& registry, const char* what, Call call,
               std::function<void(Call)> task, size_t bytes_at_least = 0);

}  // namespace millrace::serve
