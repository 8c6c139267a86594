// Companion: the shell around a core that decides beside a controller, such as an Autopilot or a
// Fleet. It tells the core of every request, and looks at the cluster every second.
//
// A member of the host that acts on what the core decides; the host's threads end before it. Any
// thread may call it. The core is used by one thread at a time.
#pragma once

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "cluster/runtime/controller_host.h"

namespace millrace::ops {

template <typename Core>
class Companion {
 public:
  // `unix_s`: the time of day. Called on the companion's thread, without its lock.
  using Look = std::function<void(const cluster::ClusterStatus& status, double unix_s)>;

  // The core is made of `core`. `controller` and `clock` outlive it.
  template <typename... Args>
  Companion(cluster::ControllerHost& controller, const Clock& clock, Args&&... core)
      : controller_(controller), clock_(clock), core_(std::forward<Args>(core)...) {}
  ~Companion() { Stop(); }

  void Start(Look look) {
    watcher_ = controller_.Watch(
        {.arrived =
             [this](RequestId id, int prompt_tokens) {
               With([&](Core& core, Time now) { core.Arrived(id, prompt_tokens, now); });
             },
         .heard =
             [this](const RequestOutput& output) {
               With([&](Core& core, Time now) { core.Heard(output, now); });
             }});
    thread_ = std::thread([this, look = std::move(look)] { Run(look); });
  }
  // Waits for a look that runs. From then on the core hears of nothing.
  void Stop() {
    if (!thread_.joinable()) return;
    controller_.Unwatch(watcher_);
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  // Does not wait for the second to pass.
  void LookNow() {
    {
      const MutexLock lock(mutex_);
      look_now_ = true;
    }
    wake_.notify_one();
  }

  // use(core, now), with the companion's lock held: it must not block, and call no controller.
  auto With(const auto& use) {
    const MutexLock lock(mutex_);
    return use(core_, clock_.Now());
  }
  auto With(const auto& use) const {
    const MutexLock lock(mutex_);
    return use(core_, clock_.Now());
  }

 private:
  static constexpr auto kLookEvery = std::chrono::seconds(1);

  void Run(const Look& look) {
    MutexLock lock(mutex_);
    while (!stopping_) {
      lock.unlock();
      const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
      look(controller_.Describe(), std::chrono::duration<double>(unix_time).count());
      lock.lock();
      wake_.wait_for(lock, kLookEvery,
                     [this]() MR_REQUIRES(mutex_) { return stopping_ || look_now_; });
      look_now_ = false;
    }
  }

  cluster::ControllerHost& controller_;
  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar wake_;
  Core core_ MR_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  bool look_now_ MR_GUARDED_BY(mutex_) = false;
  int watcher_ = 0;
  std::thread thread_;
};

}  // namespace millrace::ops
