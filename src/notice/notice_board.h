// NoticeBoard: what several sources say, as one answer to "what holds for this machine now?".
//
// A source says what holds by its latest answer, again and again. The board tells what is new: a
// notice is the same while its source gives it the same id, and then it keeps the deadline that it
// had at first, whatever the wall clock does. What a source no longer says is withdrawn. Of several
// notices the hard one that is due first holds; soft ones hold only while no hard one does.
//
// Owned by the watcher. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/notice.h"
#include "notice/wall_time.h"

namespace millrace::notice {

struct Notice {
  MachineNotice what;
  std::string id;           // names it within its source; contains the time that it names
  bool cancelable = false;  // it may be withdrawn
  friend bool operator==(const Notice&, const Notice&) = default;
};

// A provider's deadline is never trusted to the end: this much is kept for the last messages.
inline constexpr Duration kDeadlineSafety = Duration::Seconds(1);
// The least that is announced, also of a time that has passed: clocks differ.
inline constexpr Duration kDeadlineLeast = Duration::Seconds(1);

// min(when - now, cap) - kDeadlineSafety from now, at least kDeadlineLeast. `when` unset: the cap.
Time DeadlineFor(std::optional<WallTime> when, Duration cap, const Moment& now);

class NoticeBoard {
 public:
  // Replaces what the source said before.
  void Put(size_t source, std::vector<Notice> notices);
  const std::optional<Notice>& current() const { return current_; }

 private:
  std::map<size_t, std::vector<Notice>> said_;
  std::optional<Notice> current_;
};

}  // namespace millrace::notice
