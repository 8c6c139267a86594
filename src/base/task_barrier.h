// RunTask: the barrier between the threads of a pool and the tasks that they run. An exception of a
// task, such as std::bad_alloc, ends the task, not the process. Any thread.
#pragma once

#include <utility>

namespace millrace {

// Logs the exception that is being handled. `what`: the kind of task, such as "a stored request".
void LogTaskException(const char* what) noexcept;

// Runs the task. False: it threw, and one line of the log says what. What the task held has been
// released by then, as far as it owned it: a reply that was dropped answers 500.
template <typename Task>
bool RunTask(const char* what, Task&& task) noexcept {
  try {
    std::forward<Task>(task)();
    return true;
  } catch (...) {
    LogTaskException(what);
    return false;
  }
}

}  // namespace millrace
