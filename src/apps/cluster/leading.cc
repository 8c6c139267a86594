#include "apps/cluster/leading.h"

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "base/log.h"
#include "cluster/open_store.h"

namespace millrace::apps {
namespace {

constexpr char kCluster[] = "millrace";
constexpr std::string_view kEmbedded = "sqlite:";
constexpr int kLostLeadership = 75;                      // EX_TEMPFAIL: start me again
constexpr Duration kKeepTimeout = Duration::Seconds(1);  // an operator waits
constexpr auto kReport = std::chrono::seconds(10);
constexpr auto kFolderRetry = std::chrono::milliseconds(100);

// One process at a time has an embedded store: who waits for it stands by. Once it is had, nobody
// else can lead from it, so there is no lease to wait for either.
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
        std::lock_guard lock(raw->mutex_);
        if (leadership) {
          raw->elected_ = leadership;
          raw->changed_.notify_all();
          return;
        }
        if (why.code() == StatusCode::kCancelled) return;  // it resigns, as the process ends
        MR_LOG(error, "this controller leads no more: {}", Printable(why.message()));
        std::_Exit(kLostLeadership);
      });
  leading->election_->Campaign();
  std::unique_lock lock(raw->mutex_);
  while (!raw->changed_.wait_for(lock, kReport, [raw] { return raw->elected_.has_value(); })) {
    const auto leader = raw->election_->leader();
    MR_LOG(info, "standing by; {}",
           leader ? Printable(leader->candidate) + " leads" : "nobody leads yet");
  }
  raw->leadership_ = *raw->elected_;
  MR_LOG(info, "leading, term {}", raw->term().value());
  return leading;
}

Status Leading::Keep(const std::string& key, const std::string& value) {
  const cluster::WriteOptions options{.fence = leadership_.fence, .timeout = kKeepTimeout};
  return store_->Put(key, value, options).status();
}

Result<std::optional<std::string>> Leading::Kept(const std::string& key) {
  MR_ASSIGN_OR_RETURN(auto entry, store_->Get(key));
  if (!entry) return std::optional<std::string>();
  return std::optional<std::string>(std::move(entry->value));
}

}  // namespace millrace::apps
