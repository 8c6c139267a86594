#include "notice/file_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/log.h"

namespace millrace::notice {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view WithoutBlanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace

Result<FileDeadline> ParseFileDeadline(std::string_view text) {
  text = WithoutBlanks(text);
  if (text.empty()) return FileDeadline{};
  if (const auto at = ParseRfc3339(text)) return FileDeadline{.at = at};
  std::string_view number = text;
  if (number.ends_with('s')) number = WithoutBlanks(number.substr(0, number.size() - 1));
  double seconds = 0;
  const char* const end = number.data() + number.size();
  const auto [stopped, error] =
      std::from_chars(number.data(), end, seconds, std::chars_format::fixed);
  const bool is_number = error == std::errc() && stopped == end && std::isfinite(seconds);
  if (!is_number || seconds < 0 || seconds > kFileDeadlineMost.seconds()) {
    return InvalidArgument(fmt::format(
        "expected seconds up to {:.0f} such as 120s, an RFC 3339 time, or nothing, got '{}'",
        kFileDeadlineMost.seconds(), Printable(text, 40)));
  }
  return FileDeadline{.in = Duration::Seconds(seconds)};
}

std::optional<std::string> FileSource::Read() {
  // Not blocking: it may be a pipe.
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    if (errno == ENOENT) return std::nullopt;
    const std::string why = std::strerror(errno);
    const bool there = access(path_.c_str(), F_OK) == 0;
    Complain(fmt::format("cannot read {}: {}; {}", Printable(path_), why,
                         there ? "its content is not used" : "its folder must be readable"));
    return there ? std::optional<std::string>("") : std::nullopt;
  }
  struct stat facts {};
  std::array<char, kContentBytesMax> buffer{};
  const bool regular = fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode);
  const ssize_t got = regular ? read(fd, buffer.data(), buffer.size()) : -1;
  close(fd);
  if (!regular) {
    Complain(fmt::format("{} is not a regular file; create a file there to give notice",
                         Printable(path_)));
    return std::nullopt;
  }
  return std::string(buffer.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
}

void FileSource::Look(const Moment& now) {
  const auto content = Read();
  if (!content) return notice_.reset();
  if (notice_ && content_ == *content) return;
  content_ = *content;
  auto deadline = ParseFileDeadline(content_);
  if (!deadline.ok()) {
    Complain(fmt::format("{}: {}; the notice counts without a deadline", Printable(path_),
                         deadline.status().message()));
    deadline = FileDeadline{};
  }
  notice_ = Notice{.what = {.origin = {NoticeSource::kFile, NoticeKind::kPreempt}},
                   .id = content_,
                   .cancelable = true};
  if (deadline->in || deadline->at) {
    notice_->what.deadline =
        DeadlineFor(deadline->at, deadline->in.value_or(kFileDeadlineMost), now);
  }
}

std::vector<Notice> FileSource::Notices() const {
  return notice_ ? std::vector{*notice_} : std::vector<Notice>();
}

}  // namespace millrace::notice
