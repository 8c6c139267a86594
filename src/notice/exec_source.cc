#include "notice/exec_source.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cmath>

#include "base/log.h"

namespace millrace::notice {
namespace {

constexpr int kLineDepthMax = 4;
constexpr char kLineCure[] =
    R"(write lines such as {"kind":"preempt","in_s":30} or {"withdrawn":true})";

std::optional<NoticeKind> ExecKind(const std::string& name) {
  for (const NoticeKind kind : {NoticeKind::kPreempt, NoticeKind::kTerminate,
                                NoticeKind::kMaintenance, NoticeKind::kRebalance}) {
    if (name == NoticeKindName(kind)) return kind;
  }
  return std::nullopt;
}

bool IsReadable(int fd) {
  pollfd waits{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&waits, 1, 0) > 0;
}

}  // namespace

Result<std::optional<Notice>> ParseExecLine(std::string_view line, const Moment& now) {
  MR_ASSIGN_OR_RETURN(const Json json, ParseJson(line, kLineDepthMax));
  if (!json.is_object()) return InvalidArgument("expected an object");
  if (const auto withdrawn = json.find("withdrawn"); withdrawn != json.end()) {
    if (*withdrawn == Json(true)) return std::optional<Notice>();
    return InvalidArgument("\"withdrawn\" must be true");
  }
  const auto kind = ExecKind(TextOf(json, "kind"));
  if (!kind) {
    return InvalidArgument("\"kind\" must be preempt, terminate, maintenance or rebalance");
  }
  Notice notice{
      .what = {.origin = {NoticeSource::kExec, *kind}, .hard = *kind != NoticeKind::kRebalance},
      .id = std::string(NoticeKindName(*kind)),
      .cancelable = true};
  const auto in = json.find("in_s");
  if (in == json.end() || in->is_null()) return std::optional(std::move(notice));
  const double seconds = in->is_number() ? in->get<double>() : -1;
  if (!(seconds >= 0 && seconds <= kExecDeadlineMost.seconds())) {
    return InvalidArgument(
        fmt::format("\"in_s\" must be in [0, {:.0f}]", kExecDeadlineMost.seconds()));
  }
  notice.what.deadline = DeadlineFor(std::nullopt, Duration::Seconds(seconds), now);
  notice.id += "@" + in->dump();
  return std::optional(std::move(notice));
}

void ExecSource::OnLine(std::string_view line, const Moment& now) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
  auto said = ParseExecLine(line, now);
  if (!said.ok()) {
    return Complain(fmt::format("'{}' wrote '{}': {}; {}", Printable(command_, 80),
                                Printable(line, 80), said.status().message(), kLineCure));
  }
  notice_ = std::move(*said);
}

void ExecSource::Ended(const Moment& now, const std::string& failure) {
  child_.reset();
  pause_ = failure.empty() ? kPause : std::min(pause_ + pause_, kPauseMost);
  start_at_ = now.time + pause_;
  if (failure.empty()) return;
  Complain(fmt::format("'{}' {}; it is started again, at most {:.0f} s later",
                       Printable(command_, 80), failure, kPauseMost.seconds()));
}

void ExecSource::Look(const Moment& now) {
  if (!child_ && now.time >= start_at_) {
    auto child = ChildProcess::Spawn({"/bin/sh", "-c", command_}, {}, ChildOutput::kStdout);
    if (!child.ok()) return Ended(now, "cannot be started: " + child.status().message());
    child_.emplace(std::move(*child));
  }
  if (!child_) return;
  int lines = 0;
  const auto on_line = [&](std::string_view line) {
    if (++lines <= kLinesMax) return OnLine(line, now);
    Complain(fmt::format("'{}' writes more than {} lines at once, and the others were not read; {}",
                         Printable(command_, 80), kLinesMax, kLineCure));
  };
  if (IsReadable(child_->end_fd())) {
    const int code = child_->Reap(on_line);
    return Ended(now, code == 0 ? "" : fmt::format("ended with exit code {}", code));
  }
  child_->ReadLines(on_line);
}

std::vector<Notice> ExecSource::Notices() const {
  return notice_ ? std::vector{*notice_} : std::vector<Notice>();
}

}  // namespace millrace::notice
