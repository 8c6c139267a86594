#include "cluster/control/parts/outbox.h"

#include <utility>

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

}  // namespace millrace::cluster
