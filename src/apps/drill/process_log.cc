#include "apps/drill/process_log.h"

#include <fmt/format.h>

#include "base/log.h"

namespace millrace::apps {
namespace {

constexpr size_t kShownLineBytes = 400;

}  // namespace

ProcessLog::ProcessLog(const std::string& path, const Clock& clock)
    : clock_(clock), began_(clock.Now()), file_(path, std::ios::app) {}

void ProcessLog::Add(std::string_view process, std::string_view line) {
  const std::string text = fmt::format("{:8.3f} {}: {}", (clock_.Now() - began_).seconds(), process,
                                       Printable(line, kShownLineBytes));
  const MutexLock lock(mutex_);
  file_ << text << '\n' << std::flush;
  tail_.push_back(text + "\n");
  if (tail_.size() > kTailLines) tail_.pop_front();
}

std::string ProcessLog::Tail() const {
  const MutexLock lock(mutex_);
  std::string text;
  for (const std::string& line : tail_) text += line;
  return text;
}

}  // namespace millrace::apps
