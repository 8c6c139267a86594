#include "ops/autopilot/autopilot_host.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/log.h"
#include "cluster/autopilot/autopilot_view.h"

namespace millrace::ops {
namespace {

using cluster::AutopilotAction;
using cluster::ClusterStatus;
using cluster::Decision;

constexpr auto kObserveEvery = std::chrono::seconds(1);
constexpr int kSearchNice = 19;  // the searches get what serving leaves

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

AutopilotHost::AutopilotHost(AutopilotHostOptions options, cluster::ControllerHost& controller,
                             serve::ClusterAdmin& admin, const Clock& clock)
    : options_(std::move(options)),
      controller_(controller),
      admin_(admin),
      clock_(clock),
      autopilot_(options_.autopilot, options_.earlier) {
  watcher_ = controller_.Watch({.arrived =
                                    [this](RequestId id, int prompt_tokens) {
                                      const MutexLock lock(mutex_);
                                      autopilot_.Arrived(id, prompt_tokens, clock_.Now());
                                    },
                                .heard =
                                    [this](const RequestOutput& output) {
                                      const MutexLock lock(mutex_);
                                      autopilot_.Heard(output, clock_.Now());
                                    }});
  thread_ = std::thread([this] { Run(); });
}

AutopilotHost::~AutopilotHost() {
  controller_.Unwatch(watcher_);
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

AutopilotStatus AutopilotHost::Describe() const {
  const MutexLock lock(mutex_);
  const Time now = clock_.Now();
  AutopilotStatus status{
      .state = std::string(autopilot_.state()),
      .options = options_.autopilot,
      .load = autopilot_.RecentLoad(now),
      .service = autopilot_.RecentService(now),
      .decisions = {autopilot_.decisions().begin(), autopilot_.decisions().end()}};
  if (const Decision* advice = autopilot_.advice()) status.advice = *advice;
  return status;
}

void AutopilotHost::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    Look();
    lock.lock();
    wake_.wait_for(lock, kObserveEvery,
                   [this]() MR_REQUIRES(mutex_) { return stopping_ || look_now_; });
    look_now_ = false;
  }
}

void AutopilotHost::Look() {
  const ClusterStatus status = controller_.Describe();
  const cluster::AutopilotView view = cluster::ViewOf(status, UnixSeconds());
  std::vector<AutopilotAction> actions;
  {
    const MutexLock lock(mutex_);
    autopilot_.Observe(view, clock_.Now());
    autopilot_.TakeActions(actions);
  }
  Do(std::move(actions), status);
}

void AutopilotHost::Do(std::vector<AutopilotAction> actions, const ClusterStatus& status) {
  bool decided = false;
  for (const AutopilotAction& action : actions) {
    if (const auto* search = std::get_if<cluster::StartSearch>(&action)) {
      Do(*search, status);
    } else if (const auto* apply = std::get_if<cluster::ApplyPlan>(&action)) {
      Do(*apply);
    } else {
      MR_LOG(info, "autopilot: {}",
             cluster::DecisionLine(std::get<cluster::DecisionMade>(action).decision));
      decided = true;
    }
  }
  if (decided) Store();
}

void AutopilotHost::Do(const cluster::StartSearch& order, const ClusterStatus& status) {
  searches_.Put([this, order, status] {
    // Linux threads have priorities of their own.
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kSearchNice);
    cluster::SearchAnswer answer = options_.search(order, status);
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
      autopilot_.SearchEnded(order.id, std::move(answer), clock_.Now());
      look_now_ = true;
    }
    wake_.notify_one();
  });
}

void AutopilotHost::Do(const cluster::ApplyPlan& apply) {
  const Result<int64_t> applied = admin_.ApplyPlan(*apply.plan, "");
  const MutexLock lock(mutex_);
  autopilot_.ApplyEnded(applied);
}

void AutopilotHost::Store() {
  if (!options_.store) return;
  options_.store(Describe().decisions);
}

}  // namespace millrace::ops
