// CallLater: handles a call on a thread of a pool instead of the I/O thread. Any thread.
#pragma once

#include <functional>

#include "serve/request_registry.h"
#include "serve/router.h"
#include "serve/worker_pool.h"

namespace millrace::serve {

// Runs the task with the call, unless its client has left by then; answers with a 429 if too many
// of `what`, such as "large requests", wait. Draining waits for it.
void CallLater(WorkerPool& pool, RequestRegistry& registry, const char* what, Call call,
               std::function<void(Call)> task);

}  // namespace millrace::serve
