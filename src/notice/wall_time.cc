#include "notice/wall_time.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <string>

namespace millrace::notice {
namespace {

constexpr int kYearFirst = 1970, kYearLast = 9999;
constexpr int64_t kSecondsPerMinute = 60, kSecondsPerHour = 3600, kSecondsPerDay = 86400;
constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

// Takes pieces from the front of a text. After a piece that is not there, all later ones fail.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) {}

  int Number(size_t least_digits, size_t most_digits) {
    size_t digits = 0;
    while (digits < std::min(rest_.size(), most_digits) && IsDigit(rest_[digits])) ++digits;
    int value = 0;
    if (digits < least_digits) {
      ok_ = false;
    } else {
      std::from_chars(rest_.data(), rest_.data() + digits, value);
      rest_.remove_prefix(digits);
    }
    return value;
  }
  // One of the characters; 0 if it is none of them.
  char OneOf(std::string_view characters) {
    if (rest_.empty() || characters.find(rest_.front()) == std::string_view::npos) {
      ok_ = false;
      return 0;
    }
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }
  bool Skip(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  void Expect(std::string_view text) { ok_ = Skip(text) && ok_; }
  void SkipDigits() {
    while (!rest_.empty() && IsDigit(rest_.front())) rest_.remove_prefix(1);
  }
  // 1 to 12; 0 if it is none.
  int Month() {
    for (size_t m = 0; m < kMonths.size(); ++m) {
      if (Skip(kMonths[m])) return static_cast<int>(m) + 1;
    }
    ok_ = false;
    return 0;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }

 private:
  static bool IsDigit(char c) { return c >= '0' && c <= '9'; }

  std::string_view rest_;
  bool ok_ = true;
};

struct TimeOfDay {
  int hour = 0, minute = 0, second = 0;
};

TimeOfDay ReadTimeOfDay(Scanner& in) {
  TimeOfDay time;
  time.hour = in.Number(2, 2);
  in.Expect(":");
  time.minute = in.Number(2, 2);
  in.Expect(":");
  time.second = in.Number(2, 2);
  return time;
}

std::optional<WallTime> Combine(int year, int month, int day, const TimeOfDay& time) {
  using namespace std::chrono;  // NOLINT(google-build-using-namespace): its literals and types
  const year_month_day date{std::chrono::year(year),
                            std::chrono::month(static_cast<unsigned>(month)),
                            std::chrono::day(static_cast<unsigned>(day))};
  if (year < kYearFirst || year > kYearLast || !date.ok()) return std::nullopt;
  // 60: a leap second.
  if (time.hour > 23 || time.minute > 59 || time.second > 60) return std::nullopt;
  const int64_t days = sys_days(date).time_since_epoch().count();
  return WallTime{days * kSecondsPerDay + time.hour * kSecondsPerHour +
                  time.minute * kSecondsPerMinute + time.second};
}

}  // namespace

WallTime WallNow() {
  using std::chrono::system_clock;
  return {std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch())
              .count()};
}

std::optional<WallTime> ParseRfc3339(std::string_view text) {
  Scanner in(text);
  const int year = in.Number(4, 4);
  in.Expect("-");
  const int month = in.Number(2, 2);
  in.Expect("-");
  const int day = in.Number(2, 2);
  in.OneOf("Tt ");
  const TimeOfDay time = ReadTimeOfDay(in);
  if (in.Skip(".")) {
    in.Number(1, 1);
    in.SkipDigits();
  }
  int64_t offset_s = 0;
  const char sign = in.OneOf("Zz+-");
  if (sign == '+' || sign == '-') {
    const int hours = in.Number(2, 2);
    in.Expect(":");
    const int minutes = in.Number(2, 2);
    if (hours > 23 || minutes > 59) return std::nullopt;
    offset_s = hours * kSecondsPerHour + minutes * kSecondsPerMinute;
    if (sign == '-') offset_s = -offset_s;
  }
  if (!in.at_end()) return std::nullopt;
  auto moment = Combine(year, month, day, time);
  if (moment) moment->s -= offset_s;
  return moment;
}

std::optional<WallTime> ParseRfc1123(std::string_view text) {
  if (const size_t comma = text.find(", "); comma == 3) text.remove_prefix(5);
  Scanner in(text);
  const int day = in.Number(1, 2);
  in.Expect(" ");
  const int month = in.Month();
  in.Expect(" ");
  const int year = in.Number(4, 4);
  in.Expect(" ");
  const TimeOfDay time = ReadTimeOfDay(in);
  in.Expect(" GMT");
  if (!in.at_end()) return std::nullopt;
  return Combine(year, month, day, time);
}

}  // namespace millrace::notice
