#include "cluster/runtime/worker_process.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <utility>

#include "base/host_port.h"
#include "base/log.h"
#include "cluster/runtime/own_address.h"
#include "cluster/transfer/pull_window.h"

namespace millrace::cluster {
namespace {

constexpr Duration kRetryFirst = Duration::Millis(100);
constexpr Duration kWarnAgain = Duration::Seconds(60);  // of a cause that stays
constexpr std::chrono::milliseconds kStillPoll{100};
constexpr Duration kOwnAddressLimit = Duration::Seconds(3);
constexpr double kOwnAddressPauses_s[] = {0, 1, 2, 4, 8, 16};  // before each attempt

struct ActivationsKey {
  uint64_t pipeline = 0, step = 0;
};

std::array<std::byte, sizeof(ActivationsKey)> Encode(const ActivationsKey& key) {
  std::array<std::byte, sizeof(ActivationsKey)> bytes;
  std::memcpy(bytes.data(), &key, sizeof key);
  return bytes;
}

std::string WithPort(const std::string& address, const std::string& advertised, int port) {
  const Result<HostPort> given = ParseHostPort(address);
  const std::string& host = advertised.empty() && given.ok() ? given->host : advertised;
  return HostPort{host, static_cast<uint16_t>(port)}.ToString();
}

uint64_t RandomIncarnation() {
  std::random_device random;
  return ((uint64_t{random()} << 32) | random()) | 1;
}

}  // namespace

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(WorkerProcessOptions options,
                                                            const Clock& clock) {
  std::unique_ptr<WorkerProcess> worker(new WorkerProcess(std::move(options), clock));
  MR_RETURN_IF_ERROR(worker->Open());
  return worker;
}

WorkerProcess::WorkerProcess(WorkerProcessOptions options, const Clock& clock)
    : options_(std::move(options)), clock_(clock), incarnation_(RandomIncarnation()) {}

WorkerProcess::~WorkerProcess() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (own_address_.joinable()) own_address_.join();
  if (host_) host_->Close();
  for (const auto& control : controls_) control->Disconnect();
  peers_.reset();
  if (data_) data_->Stop();
  prober_.reset();
  exchange_.reset();
  host_.reset();
}

// Callbacks may run before the host exists, so those of the planes check it. The host is made last,
// because its Join contains the addresses of the planes.
Status WorkerProcess::Open() {
  for (const std::string& listens : {options_.control_address, options_.data_host + ":0"}) {
    const Result<HostPort> told = ParseHostPort(WithPort(listens, options_.advertised_host, 0));
    if (told.ok()) MR_RETURN_IF_ERROR(CheckOwnHost(told->host, options_.security));
  }
  exchange_ = std::make_unique<KvExchange>(clock_);
  kv_plane_ = std::make_unique<KvPlane>(*exchange_);
  net::TcpDataPlaneOptions data;
  data.host = options_.data_host;
  data.port = options_.data_port;
  data.advertised_host = options_.advertised_host;
  data.token = options_.security.token;
  data.incarnation = incarnation_.value();
  if (options_.security.tls()) {
    data.tls = net::DataPlaneTls{options_.security.certificate_path, options_.security.key_path,
                                 options_.security.authority_path};
  }
  net::DataPlaneEvents events;
  events.on_message = [this](const net::PeerAddress&, net::MessageClass,
                             std::span<const std::byte> key,
                             net::Payload payload) { OnActivations(key, std::move(payload)); };
  events.on_peer_lost = [this](const net::PeerAddress& peer, const Status& reason) {
    if (host_) host_->PeerLost(Incarnation(peer.incarnation), reason);
  };
  events.on_pull = [this](const net::PeerAddress&, std::span<const std::byte> request) {
    return ServePull(request);
  };
  MR_ASSIGN_OR_RETURN(data_, net::StartTcpDataPlane(std::move(data), std::move(events)));
  kv_plane_->Use(data_.get());
  prober_ = std::make_unique<LinkProber>(*data_, clock_);
  if (options_.weights) options_.weights->Use(data_.get());

  PeerStepsOptions peers;
  peers.address = options_.control_address;
  peers.security = options_.security;
  peers.incarnation = incarnation_;
  MR_ASSIGN_OR_RETURN(peers_, PeerSteps::Start(std::move(peers),
                                               {.on_message =
                                                    [this](PeerMessage m) {
                                                      if (host_) host_->FromPeer(std::move(m));
                                                    },
                                                .on_peer_lost =
                                                    [this](Incarnation peer, const Status& reason) {
                                                      if (host_) host_->PeerLost(peer, reason);
                                                    }}));
  MR_RETURN_IF_ERROR(OpenControls());
  WorkerAddress& address = options_.join.address;
  address.incarnation = incarnation_;
  address.control = WithPort(options_.control_address, options_.advertised_host, peers_->port());
  address.data = data_->self().endpoint;
  address.host_id = data_->self().host_id;
  address.process_id = getpid();
  host_ = std::make_unique<WorkerHost>(WorkerCoreOptions{options_.join}, options_.loader, Links(),
                                       clock_);
  own_address_ = std::thread([this] { TryOwnAddress(); });
  return OkStatus();
}

Status WorkerProcess::ReachesItself(Duration limit) {
  const WorkerAddress& address = options_.join.address;
  MR_RETURN_IF_ERROR(TryConnection(address.control, options_.security, limit));
  constexpr size_t kFewBytes = 16;
  return prober_->PullFrom(address)(kFewBytes, clock_.Now() + limit).status();
}

// Others will look for this worker where it tells them to. A name may take a while to be known, and
// a network may not lead a machine back to itself, so that this only warns.
void WorkerProcess::TryOwnAddress() {
  const WorkerAddress& address = options_.join.address;
  if (IsLoopback(address.control) && IsLoopback(address.data)) {
    const auto far = std::ranges::find_if_not(options_.controllers, IsLoopback);
    if (far == options_.controllers.end()) return;
    MR_LOG(warn,
           "others will look for this worker at {}, which leads to it on this machine alone, and "
           "its controller is at {}: if workers run on several machines, give --listen an address "
           "that they reach",
           Printable(address.control), Printable(*far));
    return;
  }
  Status reached;
  for (const double pause_s : kOwnAddressPauses_s) {
    MutexLock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(pause_s),
                      [this]() MR_REQUIRES(mutex_) { return ends_; });
    if (ends_) return;
    lock.unlock();
    reached = ReachesItself(kOwnAddressLimit);
    if (reached.ok()) return;
  }
  MR_LOG(warn,
         "this worker does not reach itself at {} and {}, where others will look for it: {}; check "
         "--listen, --data-port and --advertise",
         Printable(address.control), Printable(address.data), Printable(reached.message(), 400));
}

Status WorkerProcess::OpenControls() {
  for (const std::string& controller : options_.controllers) {
    ControlClientOptions options;
    options.controller = controller;
    options.security = options_.security;
    options.incarnation = incarnation_;
    ControlClientCallbacks callbacks;
    callbacks.on_message = [this](ToWorker message, const wire::Envelope& envelope) {
      term_ = envelope.term.value();
      host_->FromController(std::move(message));
      control_.load()->SetHeartbeatEvery(host_->heartbeat_every());
    };
    callbacks.on_disconnect = [this](const Status& reason) {
      MutexLock lock(mutex_);
      session_ended_ = reason;
      changed_.notify_all();
    };
    callbacks.make_heartbeat = [this] { return host_->MakeHeartbeat(); };
    MR_ASSIGN_OR_RETURN(auto control,
                        ControlClient::Create(std::move(options), std::move(callbacks)));
    controls_.push_back(std::move(control));
  }
  if (controls_.empty()) return InvalidArgument("no controller address is given");
  control_ = controls_.front().get();
  return OkStatus();
}

void WorkerProcess::OnActivations(std::span<const std::byte> key, net::Payload payload) {
  ActivationsKey activations;
  if (key.size() != sizeof activations || !host_) return;
  std::memcpy(&activations, key.data(), sizeof activations);
  const std::span<const std::byte> bytes = payload.bytes();
  host_->ActivationsArrived(
      PipelineId(activations.pipeline), StepId(activations.step),
      std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end()));
}

Result<net::PullSource> WorkerProcess::ServePull(std::span<const std::byte> bytes) {
  MR_ASSIGN_OR_RETURN(const PullRequest request, DecodePullRequest(bytes));
  if (const auto* kv = std::get_if<KvRequest>(&request)) return kv_plane_->Serve(*kv);
  if (const auto* probe = std::get_if<ProbeRequest>(&request)) return LinkProber::Serve(*probe);
  if (!options_.weights) return NotFound("this worker has no weights to copy");
  return options_.weights->Serve(std::get<WeightRequest>(request));
}

// The call ends with the probe, and so does its connection.
LinkProber::TimedTransfer WorkerProcess::EchoTransfer(ProbedLink link) {
  const auto way = link == ProbedLink::kToController ? EchoCall::Way::kToController
                                                     : EchoCall::Way::kFromController;
  return [this, way, call = std::shared_ptr<EchoCall>()](size_t bytes,
                                                         Time end) mutable -> Result<double> {
    if (!call) {
      MR_ASSIGN_OR_RETURN(call, control_.load()->OpenEcho());
    }
    return call->Seconds(way, bytes, end - clock_.Now());
  };
}

WorkerLinks WorkerProcess::Links() {
  WorkerLinks links;
  links.send_up = [this](ToController message) {
    (void)control_.load()->Send(Term(term_.load()), std::move(message));  // on_disconnect follows
  };
  links.send_to_peer = [this](const WorkerAddress& to, PeerMessage message) {
    (void)peers_->Send(to, Term(term_.load()), message);  // on_peer_lost follows
  };
  links.send_activations = [this](const WorkerAddress& to, PipelineId pipeline, StepId step,
                                  bool decode, ActivationBytes activations) {
    const auto key = Encode({pipeline.value(), step.value()});
    const std::span<const std::byte> bytes = *activations;
    return data_->Send(DataAddress(to),
                       decode ? net::MessageClass::kDecode : net::MessageClass::kPrefill, key,
                       net::Payload(std::move(activations), bytes));
  };
  links.start_pull = [this](ShardId, LayerRange layers, const std::shared_ptr<stage::Stage>& stage,
                            const PullKv& pull) {
    exchange_->Pull(layers, stage, pull, [this](PullDone done) { host_->PullEnded(done); });
  };
  links.export_kv = [this](ShardId, LayerRange layers, const std::shared_ptr<stage::Stage>& stage,
                           const ExportKv& kv) { exchange_->Export(layers, stage, kv); };
  links.unexport_kv = [this](const KvHandle& handle) { exchange_->Release(handle); };
  links.pipeline_closed = [this](PipelineId pipeline) { exchange_->PipelineClosed(pipeline); };
  links.start_probe = [this](const ProbeLink& probe) {
    prober_->Probe(probe.probe,
                   probe.link == ProbedLink::kFromWorker ? prober_->PullFrom(probe.from)
                                                         : EchoTransfer(probe.link),
                   [this](const LinkProbed& probed) { host_->ProbeEnded(probed); });
  };
  links.end_session = [this](const std::string& reason, bool for_good) {
    MutexLock lock(mutex_);
    for_good_ = for_good_ || for_good;
    last_word_ = Unavailable(reason);
    session_ended_ = last_word_;
    changed_.notify_all();
  };
  return links;
}

void WorkerProcess::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void WorkerProcess::Leave(std::optional<Time> by) {
  MutexLock lock(mutex_);
  leaving_ = true;
  if (by) leave_by_ = by;
  changed_.notify_all();
}

void WorkerProcess::WaitForSessionEnd(MutexLock& lock) {
  while (!stopping_ && !session_ended_) {
    if (!leave_by_) {
      changed_.wait(lock);
      continue;
    }
    const Duration left = *leave_by_ - clock_.Now();
    if (left <= Duration()) return;
    changed_.wait_for(lock, std::chrono::nanoseconds(left.ns));
  }
}

// Joins once and returns when the session ends.
Status WorkerProcess::OneSession(bool& joined) {
  {
    MutexLock lock(mutex_);
    session_ended_.reset();
  }
  MR_RETURN_IF_ERROR(control_.load()->Connect(options_.connect_limit));
  host_->SessionUp();
  MutexLock lock(mutex_);
  WaitForSessionEnd(lock);
  const Status ended = session_ended_.value_or(OkStatus());
  lock.unlock();
  joined = host_->welcomed();
  control_.load()->Disconnect();
  host_->SessionDown();
  return ended;
}

// A session without a thread that computes would only hold up requests. Returns at once if it moves
// or has nothing to do. False: this worker is to end.
bool WorkerProcess::WaitUntilItMoves() {
  const auto still = [this]() -> std::optional<ComputingSince> {
    auto computing = host_->computing();
    const bool stands = computing && clock_.Now() - computing->since > options_.still_limit;
    return stands ? std::move(computing) : std::nullopt;
  };
  const auto first = still();
  if (!first) return true;
  MR_LOG(error,
         "the computing thread has not moved for {:.1f} s ({}): this worker joins again when "
         "it does; if it does not, restart this process",
         (clock_.Now() - first->since).seconds(),
         first->what.empty() ? "it does not take up its work" : first->what);
  MutexLock lock(mutex_);
  while (!stopping_ && !leaving_ && still()) changed_.wait_for(lock, kStillPoll);
  return !stopping_ && !leaving_;
}

Status WorkerProcess::Run() {
  std::string warned;
  Time warned_at;
  Duration wait = kRetryFirst;
  Time alone_since = clock_.Now();
  {
    MutexLock lock(mutex_);
    for_good_ = false;
    if (stopping_) return OkStatus();
  }
  for (size_t attempt = 0;; ++attempt) {
    control_ = controls_[attempt % controls_.size()].get();
    const std::string& controller = options_.controllers[attempt % controls_.size()];
    bool joined = false;
    if (!WaitUntilItMoves()) return OkStatus();
    const Status ended = OneSession(joined);
    MutexLock lock(mutex_);
    if (stopping_) return OkStatus();
    if (leaving_ && !for_good_) {
      MR_LOG(info, "the session with the controller is over: ending");
      return OkStatus();
    }
    if (for_good_) return joined ? OkStatus() : last_word_;
    if (ended.code() == StatusCode::kUnauthenticated) return ended;
    if (joined) {
      wait = kRetryFirst;
      alone_since = clock_.Now();
      MR_LOG(warn, "the session with the controller ended: {}; joining again",
             Printable(ended.message()));
    } else if (ended.code() == StatusCode::kFailedPrecondition &&
               (ended.message() != warned || clock_.Now() - warned_at >= kWarnAgain)) {
      warned = ended.message();  // waiting alone does not help
      warned_at = clock_.Now();
      MR_LOG(warn, "cannot join {}: {}; trying again", Printable(controller),
             Printable(warned, 1024));
    } else {
      MR_LOG(info, "cannot join {}: {}; trying again", Printable(controller),
             Printable(ended.message()));
    }
    const Duration alone = clock_.Now() - alone_since;
    if (options_.alone_limit && alone > *options_.alone_limit) {
      return Unavailable(fmt::format("could not join a controller at {} for {:.0f} s: {}",
                                     controller, alone.seconds(), ended.message()));
    }
    changed_.wait_for(lock, std::chrono::nanoseconds(wait.ns),
                      [this]() MR_REQUIRES(mutex_) { return stopping_ || leaving_; });
    if (stopping_ || leaving_) return OkStatus();
    wait = std::min(wait + wait, options_.retry_most);
  }
}

}  // namespace millrace::cluster
