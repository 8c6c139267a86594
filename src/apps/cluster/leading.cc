#include "apps/cluster/leading.h"

#include <chrono>
#include <cstdlib>

#include "base/log.h"
#include "cluster/open_store.h"

namespace millrace::apps {
namespace {

constexpr char kCluster[] = "millrace";
constexpr int kLostLeadership = 75;  // EX_TEMPFAIL: start me again
constexpr auto kReport = std::chrono::seconds(10);

}  // namespace

Result<std::unique_ptr<Leading>> Leading::Wait(const std::string& address,
                                               const std::string& candidate,
                                               const cluster::EtcdTls& tls, const Clock& clock) {
  std::unique_ptr<Leading> leading(new Leading());
  Leading* raw = leading.get();
  MR_ASSIGN_OR_RETURN(leading->store_, cluster::OpenStore(address, kCluster, tls, clock));
  cluster::ElectionOptions options;
  options.candidate = candidate;
  leading->election_ = std::make_unique<cluster::LeaderElection>(
      *leading->store_, clock, options,
      [raw](std::optional<cluster::Leadership> leadership, const Status& why) {
        std::lock_guard lock(raw->mutex_);
        if (leadership) {
          raw->elected_ = leadership->term;
          raw->changed_.notify_all();
          return;
        }
        if (raw->resigning_) return;
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
  raw->term_ = *raw->elected_;
  MR_LOG(info, "leading, term {}", raw->term_.value());
  return leading;
}

Leading::~Leading() {
  {
    std::lock_guard lock(mutex_);
    resigning_ = true;
  }
  election_.reset();
}

}  // namespace millrace::apps
