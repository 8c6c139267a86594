#include "ops/process/worker_notices.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/log.h"

namespace millrace::ops {
namespace {

constexpr char kUnfinished[] = "what the worker's threads still do";
constexpr Duration kAloneLimit = Duration::Seconds(1);  // without anything to hand over
// The deadline of a notice is shortly before the process is killed.
constexpr Duration kAfterHandOver = Duration::Seconds(0.3);

// "aws: terminate, this machine goes away in 119 s"
std::string NoticeSentence(const MachineNotice& notice, Time now) {
  std::string text = fmt::format("{}, this machine {} away", ToText(notice.origin),
                                 notice.hard ? "goes" : "may go");
  if (notice.deadline) {
    text += fmt::format(" in {:.0f} s", std::max(Duration(), *notice.deadline - now).seconds());
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<WorkerNotices>> WorkerNotices::Start(notice::Watched watched,
                                                            cluster::WorkerProcess& worker,
                                                            ProcessDeadline& deadline,
                                                            const Clock& clock) {
  if (watched.source) {
    MR_LOG(info, "watching {} for notices of this machine's end",
           NoticeSourceName(*watched.source));
  }
  std::unique_ptr<WorkerNotices> notices(new WorkerNotices(worker, deadline, clock));
  MR_ASSIGN_OR_RETURN(
      notices->watcher_,
      notice::Watcher::Start(std::move(watched), clock,
                             [raw = notices.get()](const auto& now) { raw->OnChange(now); }));
  return notices;
}

void WorkerNotices::OnSignal(int count) {
  {
    MutexLock lock(mutex_);
    signalled_ = true;
  }
  changed_.notify_all();
  if (count > 1 || !worker_.host().welcomed()) {
    deadline_.EndBy(clock_.Now() + kAloneLimit, 0, kUnfinished);
    return worker_.Stop();
  }
  MR_LOG(info, "handing over running requests; a second signal stops at once");
  worker_.Leave();
  watcher_->Signalled();
}

void WorkerNotices::OnChange(const std::optional<notice::Notice>& now) {
  std::optional<notice::Notice> before;
  bool signalled = false;
  {
    MutexLock lock(mutex_);
    before = std::exchange(notice_, now);
    signalled = signalled_;
  }
  changed_.notify_all();
  if (signalled && now && now->what.deadline) {
    worker_.Leave(now->what.deadline);
    deadline_.EndBy(*now->what.deadline + kAfterHandOver, 0, kUnfinished);
  }
  if (now) {
    MR_LOG(info, "{}{}", NoticeSentence(now->what, clock_.Now()),
           now->what.hard ? "; handing over running requests" : "");
  } else {
    MR_LOG(info, "{}, withdrawn: this worker stays", ToText(before->what.origin));
  }
  worker_.host().SetNotice(now ? std::optional(now->what) : std::nullopt);
}

bool WorkerNotices::AwaitsEnd() const { return !signalled_ && notice_ && notice_->what.hard; }

bool WorkerNotices::WaitForWithdrawal() {
  MutexLock lock(mutex_);
  if (signalled_ || !worker_.host().left_on_notice()) return false;
  if (!notice_) return true;  // it was withdrawn while the controller let the worker go
  if (!AwaitsEnd()) return false;
  MR_LOG(info, "everything is handed over; waiting for the end{}",
         notice_->cancelable ? ", or for the notice to be withdrawn" : "");
  watcher_->SetDrained(true);
  while (AwaitsEnd()) {
    if (!notice_->what.deadline) {
      changed_.wait(lock);
      continue;
    }
    const Duration left = *notice_->what.deadline + kWaitBeyond - clock_.Now();
    if (left <= Duration()) return false;
    changed_.wait_for(lock, std::chrono::nanoseconds(left.ns));
  }
  watcher_->SetDrained(false);
  return !signalled_;
}

Status WorkerNotices::Run() {
  for (;;) {
    Status ended = worker_.Run();
    if (!ended.ok() || !WaitForWithdrawal()) {
      deadline_.EndBy(clock_.Now() + kEndLimit, ended.ok() ? 0 : 1, kUnfinished);
      return ended;
    }
    MR_LOG(info, "joining again");
  }
}

}  // namespace millrace::ops
