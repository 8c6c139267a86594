#include "serve/http/body_pool.h"

#include <optional>
#include <utility>

#include "base/check.h"
#include "base/task_barrier.h"

namespace millrace::serve {

BodyPool::BodyPool(std::vector<size_t> classes, size_t waiting_max, size_t waiting_bytes_max)
    : waiting_max_(waiting_max), waiting_bytes_max_(waiting_bytes_max) {
  MR_CHECK(!classes.empty());
  for (const size_t bytes_max : classes) classes_.emplace_back().bytes_max = bytes_max;
  for (Class& one : classes_) one.thread = std::thread([this, &one] { Run(one); });
}

BodyPool::~BodyPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  for (Class& one : classes_) one.ready.notify_all();
  for (Class& one : classes_) one.thread.join();
}

BodyPool::Class& BodyPool::ClassOf(size_t bytes) {
  for (Class& one : classes_) {
    if (bytes <= one.bytes_max) return one;
  }
  return classes_.back();
}

bool BodyPool::HasRoom(const Class& of, const BodyTask& task) const {
  // One alone always has room.
  return of.tasks.empty() ||
         (of.tasks.size() < waiting_max_ &&
          static_cast<size_t>(of.tasks.cost()) + task.bytes <= waiting_bytes_max_);
}

bool BodyPool::MakeRoom(Class& of, const BodyTask& task, std::vector<BodyTask>& out) {
  if (HasRoom(of, task)) return true;
  out = of.tasks.TakeIf([](const BodyTask& one) { return one.unwanted && one.unwanted(); });
  while (!HasRoom(of, task)) {
    std::optional<BodyTask> other = of.tasks.PushOut(task.owner, static_cast<int64_t>(task.bytes));
    if (!other) return false;
    out.push_back(std::move(*other));
  }
  return true;
}

void BodyPool::Post(BodyTask task) {
  std::vector<BodyTask> out;
  Class& of = ClassOf(task.bytes);
  {
    MutexLock lock(mutex_);
    if (MakeRoom(of, task, out)) {
      const std::string owner = task.owner;
      const auto cost = static_cast<int64_t>(task.bytes);
      of.tasks.Push(owner, cost, std::move(task));
      of.ready.notify_one();
    } else {
      out.push_back(std::move(task));
    }
  }
  for (const BodyTask& one : out) RunTask("the refusal of a request", one.refuse);
}

void BodyPool::PostAlways(std::function<void()> run) {
  MutexLock lock(mutex_);
  classes_.front().tasks.Push("", 0, BodyTask{.run = std::move(run)});
  classes_.front().ready.notify_one();
}

void BodyPool::Run(Class& of) {
  MutexLock lock(mutex_);
  while (true) {
    while (of.tasks.empty()) {
      if (stopping_) return;
      of.ready.wait(lock);
    }
    std::optional<BodyTask> task = of.tasks.Pop();
    lock.unlock();
    RunTask("a request", task->run);
    task.reset();  // destroys its captures outside the lock
    lock.lock();
  }
}

}  // namespace millrace::serve
