#include "serve/later.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "serve/http/api_error.h"

namespace millrace::serve {

void CallLater(BodyPool& pool, RequestRegistry& registry, const char* what, Call call,
               std::function<void(Call)> task, size_t bytes_at_least) {
  auto shared = std::make_shared<Call>(std::move(call));
  registry.Enter();
  pool.Post({.owner = shared->owner,
             .bytes = std::max(shared->request.body.size(), bytes_at_least),
             .run =
                 [&registry, task = std::move(task), shared] {
                   const RequestRegistry::LeaveAtEnd leave(registry);
                   if (!shared->reply->disconnected()) task(std::move(*shared));
                 },
             .unwanted = [shared] { return shared->reply->disconnected(); },
             .refuse =
                 [&registry, shared, what] {
                   const RequestRegistry::LeaveAtEnd leave(registry);
                   shared->reply->Send(ErrorResponse(FromStatus(ResourceExhausted(
                       fmt::format("Too many {} are waiting; try again in a moment.", what)))));
                 }});
}

}  // namespace millrace::serve
