// SentOf: what a test's outbox holds for workers, of one kind of message.
#pragma once

#include <utility>
#include <variant>
#include <vector>

#include "cluster/control/parts/outbox.h"

namespace millrace::cluster::testing {

// The messages of one kind among the actions, with the connections they go to, in order.
template <typename T>
std::vector<std::pair<ConnectionId, T>> SentOf(const std::vector<ControllerAction>& actions) {
  std::vector<std::pair<ConnectionId, T>> sent;
  for (const ControllerAction& action : actions) {
    const auto* send = std::get_if<SendToWorker>(&action);
    if (send == nullptr) continue;
    if (const auto* message = std::get_if<T>(&send->message)) sent.emplace_back(send->to, *message);
  }
  return sent;
}

}  // namespace millrace::cluster::testing
