#include "cluster/control/outbox.h"

#include <algorithm>
#include <iterator>

namespace millrace::cluster {

void Outbox::Send(WorkerId worker, ToWorker message) {
  const Membership::Worker* to = members_.Find(worker);
  if (to != nullptr) Send(to->connection, std::move(message));
}

void Outbox::Send(ConnectionId connection, ToWorker message) {
  actions_.push_back(SendToWorker{connection, std::move(message)});
}

void Outbox::Disconnect(ConnectionId connection, std::string reason) {
  actions_.push_back(cluster::Disconnect{connection, std::move(reason)});
}

// If `actions` is empty the two vectors are swapped, so that both keep their capacity.
void Outbox::Take(std::vector<ControllerAction>& actions) {
  if (actions.empty()) {
    actions.swap(actions_);
    return;
  }
  std::ranges::move(actions_, std::back_inserter(actions));
  actions_.clear();
}

}  // namespace millrace::cluster
