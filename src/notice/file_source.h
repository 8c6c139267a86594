// FileSource: a file whose appearance is a notice and whose removal withdraws it, for whatever
// Millrace does not watch itself. Its content may be a deadline.
//
// Owned by the watcher and used on its thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "notice/source.h"

namespace millrace::notice {

// "120", "120s", "2.5 s": so long after the file was first seen with this content; or an RFC 3339
// time; or nothing. Blanks and a line end around it do not count.
struct FileDeadline {
  std::optional<Duration> in;
  std::optional<WallTime> at;
  friend bool operator==(const FileDeadline&, const FileDeadline&) = default;
};
// kInvalidArgument: none of these, or longer than kFileDeadlineMost.
inline constexpr Duration kFileDeadlineMost = Duration::Seconds(7 * 86400);
Result<FileDeadline> ParseFileDeadline(std::string_view text);

class FileSource : public LocalSource {
 public:
  static constexpr size_t kContentBytesMax = 256;

  explicit FileSource(std::string path) : path_(std::move(path)) {}

  void Look(const Moment& now) override;
  Duration period() const override { return Duration::Millis(200); }
  std::vector<Notice> Notices() const override;

 private:
  // What the file holds; nullopt: it is not there, or what is there is no file.
  std::optional<std::string> Read();

  const std::string path_;
  std::string content_;
  std::optional<Notice> notice_;
};

}  // namespace millrace::notice
