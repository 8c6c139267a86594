#include "ops/process/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace millrace::ops {
namespace {

constexpr int kUsageExit = 2;
constexpr Duration kPollMost = Duration::Seconds(1);

}  // namespace

struct Supervisor::Child {
  ChildSpec spec;
  std::optional<ChildProcess> process;
  Time started, start_at;
  int starts = 0, early_deaths = 0;
  std::optional<int> last_exit;
  bool stays_down = false;
};

Duration RestartPause(const SupervisorOptions& options, int deaths) {
  Duration pause = options.pause_first;
  for (int i = 1; i < deaths && pause < options.pause_most; ++i) pause = pause + pause;
  return std::min(pause, options.pause_most);
}

Result<std::unique_ptr<Supervisor>> Supervisor::Start(SupervisorOptions options,
                                                      std::vector<ChildSpec> children) {
  std::unique_ptr<Supervisor> made(new Supervisor(std::move(options), std::move(children)));
  if (!made->wake_.valid()) return FailedPrecondition("cannot make an event descriptor");
  // The thread that spawns must live as long as the children: PR_SET_PDEATHSIG refers to it.
  made->thread_ = std::thread([raw = made.get()] { raw->Run(); });
  MutexLock lock(made->mutex_);
  made->changed_.wait(lock,
                      [&made]() MR_REQUIRES(made->mutex_) { return made->started_.has_value(); });
  const Status started = *made->started_;
  lock.unlock();
  if (!started.ok()) return started;
  return made;
}

Supervisor::Supervisor(SupervisorOptions options, std::vector<ChildSpec> children)
    : options_(std::move(options)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (ChildSpec& spec : children) {
    children_.push_back(std::make_unique<Child>());
    children_.back()->spec = std::move(spec);
  }
}

Supervisor::~Supervisor() {
  if (!thread_.joinable()) return;
  BeginStop();
  thread_.join();
}

void Supervisor::BeginStop() {
  const MutexLock lock(mutex_);
  stopping_ = true;
  Wake();
}

void Supervisor::Kill() {
  const MutexLock lock(mutex_);
  stopping_ = killing_ = true;
  Wake();
}

bool Supervisor::Signal(std::string_view name, int number) {
  const MutexLock lock(mutex_);
  for (const auto& child : children_) {
    if (child->spec.name != name || !child->process) continue;
    child->process->Signal(number);
    return true;
  }
  return false;
}

void Supervisor::Wait() {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() MR_REQUIRES(mutex_) { return over_; });
}

std::vector<ChildStatus> Supervisor::Describe() const {
  const MutexLock lock(mutex_);
  std::vector<ChildStatus> out;
  for (const auto& child : children_) {
    ChildStatus& status = out.emplace_back();
    status.name = child->spec.name;
    if (child->process) status.pid = child->process->pid();
    status.starts = child->starts;
    status.last_exit = child->last_exit;
    status.stays_down = child->stays_down;
  }
  return out;
}

void Supervisor::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void Supervisor::Say(const Child& child, std::string_view line) const {
  if (options_.on_line) options_.on_line(child.spec.name, line);
}

void Supervisor::Run() {
  while (true) {
    const Time now = clock_.Now();
    {
      const MutexLock lock(mutex_);
      if (!StartDue(now)) stopping_ = killing_ = true;
      AdvanceStop(now);
      over_ = Over();
      changed_.notify_all();
      if (over_) return;
    }
    Poll(now);
  }
}

// Returns false when a child's first start failed.
bool Supervisor::StartDue(Time now) {
  if (stopping_) return true;
  for (auto& child : children_) {
    if (child->process || child->stays_down || now < child->start_at) continue;
    auto spawned = ChildProcess::Spawn(child->spec.argv, child->spec.environment);
    if (spawned.ok()) {
      child->process.emplace(std::move(*spawned));
      child->started = now;
      ++child->starts;
      continue;
    }
    if (!started_) {
      started_ = spawned.status();
      return false;
    }
    Say(*child, "cannot be restarted: " + spawned.status().message());
    child->start_at = now + RestartPause(options_, ++child->early_deaths);
  }
  if (!started_) started_ = OkStatus();
  return true;
}

void Supervisor::Ended(Child& child, Time now) {
  const int exit = child.process->Reap([&](std::string_view line) { Say(child, line); });
  child.process.reset();
  child.last_exit = exit;
  if (stopping_) return;
  child.stays_down = exit == 0 || exit == kUsageExit;
  if (child.stays_down) {
    Say(child, fmt::format("exited with {}; it is not restarted", exit));
    return;
  }
  child.early_deaths = now - child.started < options_.early ? child.early_deaths + 1 : 1;
  const Duration pause = RestartPause(options_, child.early_deaths);
  child.start_at = now + pause;
  Say(child, fmt::format("exited with {}; restarting in {:.1f} s", exit, pause.seconds()));
}

void Supervisor::AdvanceStop(Time now) {
  if (!stopping_) return;
  std::optional<int> order;  // the lowest of the children that still run
  for (const auto& child : children_) {
    if (child->process)
      order = std::min(order.value_or(child->spec.stop_order), child->spec.stop_order);
  }
  if (!order) return;
  const bool stop_sent = order_stopped_ && *order_stopped_ >= *order;
  const bool late = stop_sent && now >= kill_at_;
  for (const auto& child : children_) {
    if (!child->process) continue;
    if (killing_ || (late && child->spec.stop_order <= *order)) {
      child->process->Signal(SIGKILL);
    } else if (!stop_sent && child->spec.stop_order == *order) {
      child->process->Signal(SIGTERM);
    }
  }
  if (stop_sent) return;
  order_stopped_ = order;
  kill_at_ = now + options_.stop_limit;
}

bool Supervisor::Over() const {
  return std::all_of(children_.begin(), children_.end(),
                     [this](const auto& child) MR_REQUIRES(mutex_) {
                       return !child->process && (stopping_ || child->stays_down);
                     });
}

// Waits for output of the children, for their next start or kill, or for Wake.
void Supervisor::Poll(Time now) {
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
  std::vector<std::pair<Child*, bool>> of = {{nullptr, false}};  // whose, and whether it is end_fd
  Time until = now + kPollMost;
  {
    const MutexLock lock(mutex_);
    for (const auto& child : children_) {
      if (!child->process) {
        if (!child->stays_down && !stopping_) until = std::min(until, child->start_at);
        continue;
      }
      fds.push_back({child->process->end_fd(), POLLIN, 0});
      of.emplace_back(child.get(), true);
      if (child->process->output_fd() < 0) continue;
      fds.push_back({child->process->output_fd(), POLLIN, 0});
      of.emplace_back(child.get(), false);
    }
    if (stopping_ && order_stopped_) until = std::min(until, std::max(kill_at_, now));
  }
  const int64_t wait_ms = ((until - now).ns + 999'999) / 1'000'000;
  if (poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(wait_ms, 0))) <= 0) return;
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(wake_.get(), &count, sizeof count);
  const MutexLock lock(mutex_);
  for (size_t i = fds.size(); i-- > 1;) {  // output before the end
    if (fds[i].revents == 0) continue;
    Child& child = *of[i].first;
    if (of[i].second) {
      Ended(child, clock_.Now());
    } else {
      child.process->ReadLines([&](std::string_view line) { Say(child, line); });
    }
  }
}

}  // namespace millrace::ops
