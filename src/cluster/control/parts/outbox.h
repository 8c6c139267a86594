// Outbox: what the controller has decided to send to workers, in order. Each part of the controller
// adds its messages here, so that their order does not depend on which part wrote them.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cluster/control/parts/membership.h"
#include "core/connection_id.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

struct SendToWorker {
  ConnectionId to;
  ToWorker message;
};
struct Disconnect {
  ConnectionId connection;
  std::string reason;
};
using ControllerAction = std::variant<SendToWorker, Disconnect>;

// Appends. If `to` is empty the two vectors are swapped, so that both keep their capacity.
template <typename T>
void MoveOnto(std::vector<T>& from, std::vector<T>& to) {
  if (to.empty()) return to.swap(from);
  std::ranges::move(from, std::back_inserter(to));
  from.clear();
}

class Outbox {
 public:
  // `members` outlives the outbox.
  explicit Outbox(const Membership& members) : members_(members) {}

  // To a member; a message to any other worker is dropped.
  void Send(WorkerId worker, ToWorker message);
  // To a session that may have no member.
  void Send(ConnectionId connection, ToWorker message);
  void Disconnect(ConnectionId connection, std::string reason);

  // Appends what was added since the last call.
  void Take(std::vector<ControllerAction>& actions) { MoveOnto(actions_, actions); }

 private:
  const Membership& members_;
  std::vector<ControllerAction> actions_;
};

}  // namespace millrace::cluster
