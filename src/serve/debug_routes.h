// DebugRoutes: GET /debug/requests, for operators: the requests that run, where each waits and what
// its time went into, and the slowest of those that ended. Owned by the service; any thread.
#pragma once

#include <utility>

#include "base/clock.h"
#include "serve/http/router.h"
#include "serve/observe/request_registry.h"
#include "serve/other_apis.h"

namespace millrace::serve {

class DebugRoutes {
 public:
  // Both outlive this.
  DebugRoutes(ChatRoutes routes, const RequestRegistry& registry, const Clock& clock)
      : routes_(std::move(routes)), registry_(registry), clock_(clock) {}
  // The table's handlers refer to this.
  void AddTo(RouteTable& table);

 private:
  void List(Call call);
  void Show(Call call);
  // `loaded`: null while the model is loading.
  Json Describe(const RegistryEntry& entry, const ModelContext* loaded) const;

  const ChatRoutes routes_;
  const RequestRegistry& registry_;
  const Clock& clock_;
};

}  // namespace millrace::serve
