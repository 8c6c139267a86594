// Watcher: the thread that watches the sources of notices. It asks metadata services over HTTP,
// looks at local sources, and reports what holds for this machine whenever that changes.
//
// Owned by the worker's command. Any thread may call it; `on_change` runs on the watcher's thread
// and must not destroy it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "net/http/http_client.h"
#include "notice/choice.h"
#include "notice/notice_board.h"
#include "notice/source.h"

namespace millrace::notice {

class Watcher {
 public:
  // nullopt: no notice holds any more.
  using OnChange = std::function<void(const std::optional<Notice>& now)>;

  static Result<std::unique_ptr<Watcher>> Start(Watched watched, const Clock& clock,
                                                OnChange on_change);
  ~Watcher();

  // SIGTERM has come.
  void Signalled();
  // Whether the worker has handed over everything.
  void SetDrained(bool drained);

 private:
  struct Asked {
    net::FetchId fetch;
    Time until;
    bool late = false;
    Answer answer;
  };
  struct Asking {
    std::unique_ptr<MetadataSource> source;
    std::shared_ptr<Asked> open;  // the question that has no answer yet
  };
  struct News {  // since the thread looked last
    bool stop = false, signalled = false;
    std::optional<bool> drained;
    std::vector<std::pair<size_t, std::shared_ptr<Asked>>> answers;  // by source
    bool any() const { return stop || signalled || drained || !answers.empty(); }
  };

  Watcher(Watched watched, const Clock& clock, OnChange on_change);
  Status Open();
  void Run();
  News WaitForNews(Time until);
  void Ask(size_t index, const Moment& now);
  void Act(News& news, const Moment& now);
  void Put(size_t place, Source& source);
  void Tell();
  Time NextDue() const;
  Moment Now() const { return {clock_.Now(), WallNow()}; }

  const Watched watched_;
  const Clock& clock_;
  const OnChange on_change_;
  // The thread's own.
  std::vector<Asking> asking_;
  std::unique_ptr<LocalSource> local_;
  Time look_at_;
  NoticeBoard board_;
  std::optional<Notice> told_;

  Mutex mutex_;
  CondVar changed_;
  News news_ MR_GUARDED_BY(mutex_);

  std::unique_ptr<net::HttpClient> http_;  // its callbacks use news_
  std::thread thread_;
};

}  // namespace millrace::notice
