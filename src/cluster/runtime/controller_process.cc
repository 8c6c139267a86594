#include "cluster/runtime/controller_process.h"

#include <utility>

#include "base/log.h"

namespace millrace::cluster {

Result<std::unique_ptr<ControllerProcess>> ControllerProcess::Start(ControllerHostOptions host,
                                                                    ControlServerOptions server,
                                                                    const Clock& clock) {
  std::unique_ptr<ControllerProcess> both(new ControllerProcess());
  ControllerProcess* raw = both.get();
  const Term term = host.controller.term;
  host.remote_workers = true;
  ControllerLinks links;
  // Nothing is sent before the server exists, because no worker can join.
  links.send = [raw, term](ConnectionId to, const ToWorker& message) {
    const Status sent = raw->server_->Send(to, term, message);
    if (sent.code() != StatusCode::kTooLarge) return;  // on_disconnect follows
    MR_LOG(error, "a message to a worker is too large: {}", sent.message());
    raw->server_->Close(to, sent.message());
  };
  links.disconnect = [raw](ConnectionId connection, const std::string& reason) {
    raw->server_->Close(connection, reason);
  };
  MR_ASSIGN_OR_RETURN(both->host_, ControllerHost::Start(std::move(host), std::move(links), clock));
  ControllerHost* brain = both->host_.get();
  ControlServerCallbacks callbacks;
  callbacks.on_message = [brain](ConnectionId from, ToController message, const wire::Envelope&) {
    brain->Receive(from, std::move(message));
  };
  callbacks.on_heartbeat = [brain](ConnectionId from, const Heartbeat& beat) {
    brain->Beat(from, beat);
  };
  callbacks.on_disconnect = [brain](ConnectionId connection, const Status& reason) {
    brain->ConnectionLost(connection, reason);
  };
  MR_ASSIGN_OR_RETURN(both->server_, ControlServer::Start(std::move(server), std::move(callbacks)));
  return both;
}

// Closes the host, so that it sends no more messages. Then the sessions end, and their last
// callbacks still reach the host, which is destroyed last.
ControllerProcess::~ControllerProcess() {
  if (host_) host_->Close();
  server_.reset();
  host_.reset();
}

}  // namespace millrace::cluster
