#include "notice/notice_board.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace millrace::notice {
namespace {

auto Urgency(const Notice& notice) {
  constexpr Time kNever{std::numeric_limits<int64_t>::max()};
  return std::tuple(!notice.what.hard, notice.what.deadline.value_or(kNever));
}

}  // namespace

Time DeadlineFor(std::optional<WallTime> when, Duration cap, const Moment& now) {
  constexpr int64_t kNsPerS = 1'000'000'000;
  Duration in = cap;
  if (when) {
    const int64_t most_s = cap.ns / kNsPerS + 1;  // before the product, which must not overflow
    in = std::min(cap, Duration{std::clamp<int64_t>(when->s - now.wall.s, 0, most_s) * kNsPerS});
  }
  return now.time + std::max(in - kDeadlineSafety, kDeadlineLeast);
}

void NoticeBoard::Put(size_t source, std::vector<Notice> notices) {
  std::vector<Notice>& said = said_[source];
  for (Notice& notice : notices) {
    const auto known = std::ranges::find(said, notice.id, &Notice::id);
    if (known != said.end()) notice.what.deadline = known->what.deadline;
  }
  said = std::move(notices);
  current_.reset();
  for (const auto& entry : said_) {
    for (const Notice& notice : entry.second) {
      if (!current_ || Urgency(notice) < Urgency(*current_)) current_ = notice;
    }
  }
}

}  // namespace millrace::notice
