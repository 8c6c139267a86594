#include "ops/cluster/leading.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <string_view>
#include <thread>

#include "base/log.h"
#include "cluster/store/open_store.h"

namespace millrace::ops {
namespace {

constexpr char kCluster[] = "millrace";
constexpr std::string_view kEmbedded = "sqlite:";
constexpr int kLostLeadership = 75;                      // EX_TEMPFAIL: to be restarted
constexpr Duration kKeepTimeout = Duration::Seconds(1);  // an operator is waiting
constexpr std::chrono::milliseconds kFirstReport{1000}, kReport{10'000};
constexpr auto kFolderRetry = std::chrono::milliseconds(100);
constexpr auto kTellLimit = std::chrono::seconds(1);
constexpr auto kLastBytes = std::chrono::milliseconds(200);  // for the last bytes to reach clients
constexpr char kClusterId[] = "cluster-id";

// Only one process at a time can open an embedded store; a standby waits for it here. A process
// that has opened it has no rival, so it deletes the predecessor's lease instead of waiting for its
// end.
Result<std::unique_ptr<cluster::Store>> OpenWhenFree(const std::string& address,
                                                     const cluster::EtcdTls& tls,
                                                     const Clock& clock) {
  auto reported = std::chrono::steady_clock::now() - kReport;
  while (true) {
    auto store = cluster::OpenStore(address, kCluster, tls, clock);
    if (store.ok() && address.starts_with(kEmbedded)) {
      MR_RETURN_IF_ERROR((*store)->Delete(cluster::ElectionOptions().key).status());
    }
    if (store.status().code() != StatusCode::kFailedPrecondition) return store;
    if (std::chrono::steady_clock::now() - reported >= kReport) {
      reported = std::chrono::steady_clock::now();
      MR_LOG(info, "standing by; {}", store.status().message());
    }
    std::this_thread::sleep_for(kFolderRetry);
  }
}

}  // namespace

Result<std::unique_ptr<Leading>> Leading::Wait(const std::string& address,
                                               const std::string& candidate,
                                               const cluster::EtcdTls& tls, const Clock& clock) {
  std::unique_ptr<Leading> leading(new Leading());
  Leading* raw = leading.get();
  MR_ASSIGN_OR_RETURN(leading->store_, OpenWhenFree(address, tls, clock));
  cluster::ElectionOptions options;
  options.candidate = candidate;
  leading->election_ = std::make_unique<cluster::LeaderElection>(
      *leading->store_, clock, options,
      [raw](std::optional<cluster::Leadership> leadership, const Status& why) {
        if (leadership) {
          MutexLock lock(raw->mutex_);
          if (raw->elected_) MR_LOG(info, "leading again, term {}", leadership->term.value());
          raw->elected_ = leadership;
          raw->changed_.notify_all();
          return;
        }
        if (why.code() == StatusCode::kCancelled) return;  // it resigned because the process ends
        raw->Lose(why);
      });
  leading->election_->Campaign();
  MutexLock lock(raw->mutex_);
  auto wait = kFirstReport;
  while (!raw->changed_.wait_for(
      lock, wait, [raw]() MR_REQUIRES(raw->mutex_) { return raw->elected_.has_value(); })) {
    wait = raw->ReportStandby() ? kReport : kFirstReport;
  }
  raw->term_ = raw->elected_->term;
  lock.unlock();
  MR_RETURN_IF_ERROR(raw->NameCluster());
  MR_LOG(info, "leading, term {}", raw->term().value());
  return leading;
}

// Returns false if nothing is known yet.
bool Leading::ReportStandby() const {
  const Status tried = election_->last_try();
  if (const auto leader = election_->leader()) {
    MR_LOG(info, "standing by; {} is the leader", Printable(leader->candidate));
  } else if (tried.code() == StatusCode::kFailedPrecondition) {
    MR_LOG(info, "standing by; no leader elected yet");
  } else if (!tried.ok()) {
    MR_LOG(warn, "cannot lead yet: {}", Printable(tried.message()));
  } else {
    return false;
  }
  return true;
}

// The cluster's first leader chooses the id.
Status Leading::NameCluster() {
  MR_ASSIGN_OR_RETURN(const std::optional<std::string> kept, Kept(kClusterId));
  if (!kept) return ChooseClusterId();
  cluster_id_ = *kept;
  return OkStatus();
}

Status Leading::ChooseClusterId() {
  std::random_device random;
  const std::string id = fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
  MR_RETURN_IF_ERROR(store_->Put(kClusterId, id, {.fence = fence()}).status());
  cluster_id_ = id;
  return OkStatus();
}

cluster::Fence Leading::fence() const {
  MutexLock lock(mutex_);
  return elected_->fence;
}

void Leading::OnLoss(std::function<void()> tell) {
  MutexLock lock(telling_);
  tell_ = std::move(tell);
}

// A successor need not wait for this process, which delivers nothing from now on that is not
// recorded. The detached thread ends the process even if `tell_` hangs on interrupted work.
void Leading::Lose(const Status& why) {
  lost_ = true;
  MR_LOG(error, "this controller is no longer the leader: {}", Printable(why.message()));
  std::thread([] {
    std::this_thread::sleep_for(kTellLimit);
    std::_Exit(kLostLeadership);
  }).detach();
  MutexLock lock(telling_);
  if (tell_) {
    tell_();
    std::this_thread::sleep_for(kLastBytes);
  }
  std::_Exit(kLostLeadership);
}

Status Leading::Keep(const std::string& key, const std::string& value) {
  const cluster::WriteOptions options{.fence = fence(), .timeout = kKeepTimeout};
  return store_->Put(key, value, options).status();
}

Result<std::optional<std::string>> Leading::Kept(const std::string& key) {
  MR_ASSIGN_OR_RETURN(auto entry, store_->Get(key));
  if (!entry) return std::optional<std::string>();
  return std::optional<std::string>(std::move(entry->value));
}

}  // namespace millrace::ops
