#include "notice/watcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "notice/providers.h"

namespace millrace::notice {
namespace {

constexpr Duration kIdleWait = Duration::Seconds(3600);
constexpr Duration kConnectLimit = Duration::Seconds(2);
constexpr Duration kReadLimit = Duration::Seconds(300);  // Question::limit is shorter
constexpr size_t kConnectionsMax = 4;

// Places on the board: the metadata sources come first.
constexpr size_t kLocalPlace = 1000, kSignalPlace = 1001;

}  // namespace

Watcher::Watcher(Watched watched, const Clock& clock, OnChange on_change)
    : watched_(std::move(watched)), clock_(clock), on_change_(std::move(on_change)) {}

Result<std::unique_ptr<Watcher>> Watcher::Start(Watched watched, const Clock& clock,
                                                OnChange on_change) {
  std::unique_ptr<Watcher> watcher(new Watcher(std::move(watched), clock, std::move(on_change)));
  MR_RETURN_IF_ERROR(watcher->Open());
  watcher->thread_ = std::thread([w = watcher.get()] { w->Run(); });
  return watcher;
}

Status Watcher::Open() {
  if (watched_.source) {
    const Provider& provider = ProviderOf(*watched_.source);
    if (provider.ask != nullptr) {
      for (auto& source : provider.ask()) asking_.push_back({std::move(source), nullptr});
    }
    if (provider.look != nullptr) local_ = provider.look(watched_.argument);
  }
  look_at_ = clock_.Now();
  if (asking_.empty()) return OkStatus();
  net::HttpClientOptions options;
  options.connect_timeout = kConnectLimit;
  options.read_timeout = kReadLimit;
  options.idle_connections_max = kConnectionsMax;
  options.body_bytes_max = kAnswerBytesMax;
  MR_ASSIGN_OR_RETURN(http_, net::HttpClient::Start(options));
  return OkStatus();
}

Watcher::~Watcher() {
  {
    MutexLock lock(mutex_);
    news_.stop = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  http_.reset();
}

void Watcher::Signalled() {
  {
    MutexLock lock(mutex_);
    news_.signalled = true;
  }
  changed_.notify_all();
}

void Watcher::SetDrained(bool drained) {
  {
    MutexLock lock(mutex_);
    news_.drained = drained;
  }
  changed_.notify_all();
}

Time Watcher::NextDue() const {
  Time next = clock_.Now() + kIdleWait;
  if (local_) next = std::min(next, look_at_);
  for (const Asking& each : asking_) {
    if (!each.open) {
      next = std::min(next, each.source->due());
    } else if (!each.open->late) {
      next = std::min(next, each.open->until);
    }
  }
  return next;
}

Watcher::News Watcher::WaitForNews(Time until) {
  MutexLock lock(mutex_);
  const Duration wait = std::max(Duration(), until - clock_.Now());
  changed_.wait_for(lock, std::chrono::nanoseconds(wait.ns),
                    [this]() MR_REQUIRES(mutex_) { return news_.any(); });
  return std::exchange(news_, {});
}

void Watcher::Run() {
  for (;;) {
    News news = WaitForNews(NextDue());
    if (news.stop) return;
    const Moment now = Now();
    Act(news, now);
    if (local_ && now.time >= look_at_) {
      local_->Look(now);
      look_at_ = now.time + local_->period();
      Put(kLocalPlace, *local_);
    }
    for (size_t i = 0; i < asking_.size(); ++i) {
      Asking& each = asking_[i];
      if (!each.open && now.time >= each.source->due()) {
        Ask(i, now);
      } else if (each.open && !each.open->late && now.time >= each.open->until) {
        each.open->late = true;
        http_->Cancel(each.open->fetch);
      }
    }
    Tell();
  }
}

void Watcher::Act(News& news, const Moment& now) {
  if (news.signalled) {
    board_.Put(kSignalPlace, {{.what = SignalNotice(watched_.signal, now), .id = "signal"}});
  }
  if (news.drained) {
    for (const Asking& each : asking_) each.source->SetDrained(*news.drained);
    if (local_) local_->SetDrained(*news.drained);
  }
  for (auto& [index, asked] : news.answers) {
    Asking& each = asking_[index];
    each.open = nullptr;
    each.source->OnAnswer(asked->answer, now);
    Put(index, *each.source);
  }
}

void Watcher::Put(size_t place, Source& source) {
  for (const std::string& complaint : source.TakeComplaints()) {
    MR_LOG(warn, "notices from {}: {}", NoticeSourceName(*watched_.source), complaint);
  }
  board_.Put(place, source.Notices());
}

void Watcher::Tell() {
  if (board_.current() == told_) return;
  told_ = board_.current();
  on_change_(told_);
}

void Watcher::Ask(size_t index, const Moment& now) {
  Question question = asking_[index].source->Next(now);
  const auto asked = std::make_shared<Asked>();
  asking_[index].open = asked;
  asked->until = now.time + question.limit;
  net::HttpCall call{.method = std::move(question.method),
                     .url = watched_.endpoint.Join(question.target),
                     .headers = std::move(question.headers),
                     .body = std::move(question.body)};
  net::FetchCallbacks callbacks;
  callbacks.on_head = [asked](int code, const net::HttpHeaders& headers) {
    asked->answer.code = code;
    asked->answer.headers = headers;
  };
  callbacks.on_data = [asked](std::string_view part) { asked->answer.body += part; };
  callbacks.on_done = [this, asked, index, limit = question.limit](Status status) {
    if (status.code() == StatusCode::kCancelled) {
      status = Status(StatusCode::kDeadlineExceeded,
                      fmt::format("{} did not answer within {:g} s", watched_.endpoint.ToString(),
                                  limit.seconds()));
    }
    asked->answer.status = std::move(status);
    {
      MutexLock lock(mutex_);
      news_.answers.emplace_back(index, asked);
    }
    changed_.notify_all();
  };
  asked->fetch = http_->Fetch(std::move(call), std::move(callbacks));
}

}  // namespace millrace::notice
