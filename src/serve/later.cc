#include "serve/later.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "serve/api_error.h"

namespace millrace::serve {

void CallLater(WorkerPool& pool, RequestRegistry& registry, const char* what, Call call,
               std::function<void(Call)> task) {
  auto shared = std::make_shared<Call>(std::move(call));
  registry.Enter();
  const bool taken = pool.TryPost([&registry, task = std::move(task), shared] {
    if (!shared->reply->disconnected()) task(std::move(*shared));
    registry.Leave();
  });
  if (taken) return;
  registry.Leave();
  shared->reply->Send(ErrorResponse(FromStatus(
      ResourceExhausted(fmt::format("Too many {} are waiting; try again in a moment.", what)))));
}

}  // namespace millrace::serve
