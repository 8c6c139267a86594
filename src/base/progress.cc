#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/log_format.h"
#include "base/units.h"

namespace millrace {
namespace {

constexpr int kBarCells = 24;
constexpr Duration kBarInterval = Duration::Millis(100);
constexpr Duration kFirstPlain = Duration::Seconds(2);
constexpr Duration kPlainInterval = Duration::Seconds(5);

void PrintPlain(FILE* out, const std::string& line) {
  const bool json = out == stderr && CurrentLogFormat() == LogFormat::kJson;
  fmt::print(out, "{}\n",
             json ? JsonLogLine(std::chrono::system_clock::now(), "info", line) : line);
  std::fflush(out);
}

std::string Amount(ProgressUnit unit, int64_t done, int64_t total) {
  if (unit == ProgressUnit::kBytes) return FormatBytes(done) + " of " + FormatBytes(total);
  return fmt::format("{} of {}", FormatCount(done), FormatCount(total));
}

std::string Rate(ProgressUnit unit, double per_second) {
  if (unit == ProgressUnit::kBytes) {
    return per_second < 1e9 ? fmt::format("{:.1f} MB/s", per_second / 1e6)
                            : fmt::format("{:.2f} GB/s", per_second / 1e9);
  }
  return fmt::format("{:.2f}/s", per_second);
}

}  // namespace

ProgressStyle ProgressStyle::ForStream(FILE* stream) {
  const char* term = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");
  const bool dumb = term == nullptr || std::strcmp(term, "dumb") == 0;
  const bool plain = no_color != nullptr && no_color[0] != '\0';
  const bool json = CurrentLogFormat() == LogFormat::kJson;
  const bool bar = isatty(fileno(stream)) == 1 && !dumb && !plain && !json;
  return {.bar = bar, .beats = !bar};
}

ProgressBeat::ProgressBeat(bool beats, std::function<void()> paint) : paint_(std::move(paint)) {
  if (beats) thread_ = std::thread([this] { Run(); });
}

void ProgressBeat::Stop() {
  {
    const MutexLock lock(mutex_);
    stops_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ProgressBeat::Run() {
  Duration wait = kFirstPlain;
  MutexLock lock(mutex_);
  const auto stops = [this]() MR_REQUIRES(mutex_) { return stops_; };
  while (!changed_.wait_for(lock, std::chrono::nanoseconds(wait.ns), stops)) {
    wait = kPlainInterval;
    lock.unlock();
    paint_();
    lock.lock();
  }
}

ProgressText::ProgressText(FILE* out, ProgressStyle style,
                           std::function<std::string(const std::string& text)> line)
    : out_(out),
      style_(style),
      line_(std::move(line)),
      beat_(style.beats, [this] { PrintLine(); }) {}

ProgressText::~ProgressText() {
  beat_.Stop();
  const MutexLock lock(mutex_);
  if (style_.bar && !text_.empty()) fmt::print(out_, "\r\x1b[K");
  std::fflush(out_);
}

void ProgressText::Show(std::string text) {
  const MutexLock lock(mutex_);
  text_ = std::move(text);
  if (!style_.bar) return;
  fmt::print(out_, "\r\x1b[K{}", Line());
  std::fflush(out_);
}

void ProgressText::PrintLine() {
  const MutexLock lock(mutex_);
  if (!text_.empty()) PrintPlain(out_, Line());
}

std::string ProgressLine(const std::string& title, ProgressUnit unit, int64_t done, int64_t total,
                         double elapsed_s, bool bar) {
  const double part =
      total <= 0 ? 1 : std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const double rate = elapsed_s > 0 ? static_cast<double>(done) / elapsed_s : 0;
  std::string line = title + " ";
  if (bar) {
    const auto full = static_cast<size_t>(part * kBarCells);
    line += "[" + std::string(full, '=') + std::string(kBarCells - full, ' ') + "] ";
  }
  line += fmt::format("{:3.0f}% {}", part * 100, Amount(unit, done, total));
  if (rate > 0) line += ", " + Rate(unit, rate);
  if (done >= total) {
    line += " in " + FormatDuration(elapsed_s);
  } else if (rate > 0) {
    line += ", " + FormatDuration(static_cast<double>(total - done) / rate) + " left";
  }
  return line;
}

Progress::Progress(std::string title, ProgressUnit unit, int64_t total, FILE* out,
                   ProgressStyle style, const Clock& clock)
    : title_(std::move(title)),
      unit_(unit),
      out_(out),
      style_(style),
      clock_(clock),
      start_(clock.Now()),
      total_(total),
      painted_(start_),
      beat_(style.beats, [this] {
        const MutexLock lock(mutex_);
        if (!finished_ && total_ > 0) Paint(clock_.Now(), false);
      }) {}

Progress::~Progress() { Finish(); }

void Progress::Update(int64_t done) {
  MutexLock lock(mutex_);
  done_ = done;
  if (style_.beats) return;
  const Time now = clock_.Now();
  const Duration plain = painted_ == start_ ? kFirstPlain : kPlainInterval;
  if (now - painted_ >= (style_.bar ? kBarInterval : plain)) Paint(now, false);
}

void Progress::UpdateTotal(int64_t done, int64_t total) {
  {
    MutexLock lock(mutex_);
    total_ = total;
  }
  Update(done);
}

void Progress::SetNote(std::string note) {
  MutexLock lock(mutex_);
  note_ = std::move(note);
}

void Progress::Finish() {
  beat_.Stop();
  MutexLock lock(mutex_);
  if (finished_) return;
  finished_ = true;
  if (total_ > 0) Paint(clock_.Now(), true);
}

void Progress::Paint(Time now, bool last) {
  if (style_.only_long && now - start_ < kFirstPlain) return;
  painted_ = now;
  std::string line =
      ProgressLine(title_, unit_, done_, total_, (now - start_).seconds(), style_.bar);
  if (!note_.empty()) line += " (" + note_ + ")";
  // "\x1b[K" clears the rest of a longer line before.
  if (style_.bar) {
    fmt::print(out_, "\r{}\x1b[K{}", line, last ? "\n" : "");
  } else {
    PrintPlain(out_, line);
  }
  std::fflush(out_);
}

}  // namespace millrace
