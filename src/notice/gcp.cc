#include "notice/gcp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/log.h"

namespace millrace::notice {
namespace {

constexpr char kFlavor[] = "Metadata-Flavor";
constexpr size_t kEtagBytesMax = 128;
constexpr Duration kLongPollSlack = Duration::Seconds(10);
constexpr char kGcpCure[] = "check GCE_METADATA_HOST; --notice-source none stops asking";

// It goes into a query.
bool IsEtag(std::string_view text) {
  return !text.empty() && text.size() <= kEtagBytesMax &&
         std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

}  // namespace

Result<std::vector<Notice>> ReadGcpValue(GcpSource::Value value, const std::string& text,
                                         const std::string& id, const Moment& now) {
  const auto notice = [&](NoticeKind kind, bool hard, std::optional<Time> deadline) {
    return std::vector{
        Notice{.what = {.origin = {NoticeSource::kGcp, kind}, .hard = hard, .deadline = deadline},
               .id = id,
               .cancelable = kind == NoticeKind::kMaintenance}};
  };
  if (value == GcpSource::Value::kPreempted) {
    if (text == "FALSE") return std::vector<Notice>();
    if (text != "TRUE") return InvalidArgument("expected TRUE or FALSE");
    const Time deadline = DeadlineFor(std::nullopt, GcpSource::kPreemptionMost, now);
    return notice(NoticeKind::kPreempt, true, deadline);
  }
  if (text == "NONE") return std::vector<Notice>();
  if (text == "MIGRATE_ON_HOST_MAINTENANCE") {
    return notice(NoticeKind::kMaintenance, false, std::nullopt);  // it goes on elsewhere
  }
  if (text != "TERMINATE_ON_HOST_MAINTENANCE") {
    return InvalidArgument(
        "expected NONE, MIGRATE_ON_HOST_MAINTENANCE or TERMINATE_ON_HOST_MAINTENANCE");
  }
  const Time deadline = DeadlineFor(std::nullopt, GcpSource::kMaintenanceMost, now);
  return notice(NoticeKind::kMaintenance, true, deadline);
}

std::string GcpSource::Target() const {
  return std::string("/computeMetadata/v1/instance/") +
         (value_ == Value::kPreempted ? "preempted" : "maintenance-event");
}

Question GcpSource::Next(const Moment&) {
  Question question{.target = Target(), .headers = {{kFlavor, "Google"}}};
  if (etag_) {
    question.target += fmt::format("?wait_for_change=true&last_etag={}&timeout_sec={:.0f}", *etag_,
                                   kLongPoll.seconds());
    question.limit = kLongPoll + kLongPollSlack;
  }
  return question;
}

void GcpSource::OnAnswer(const Answer& answer, const Moment& now) {
  const auto fail = [&](const std::string& why) {
    etag_.reset();  // a change may have been missed: the next question does not wait
    Failed(now, fmt::format("{}: {}; {}", Target(), why, kGcpCure));
  };
  if (!answer.status.ok() || answer.code != 200) return fail(WhyUseless(answer));
  if (net::FindHeader(answer.headers, kFlavor) != "Google") {
    return fail("the answer lacks Metadata-Flavor: Google, so it is not the metadata server's");
  }
  const std::string text = Trimmed(answer.body);
  const bool changed = std::exchange(latest_, text) != text;
  if (changed) ++changes_;
  auto notices = ReadGcpValue(value_, text, fmt::format("{}@{}", text, changes_), now);
  if (!notices.ok()) {
    return fail(fmt::format("its answer '{}' cannot be read: {}", Printable(text, 40),
                            notices.status().message()));
  }
  notices_ = std::move(*notices);
  const std::string_view etag = net::FindHeader(answer.headers, "ETag").value_or("");
  etag_.reset();
  if (IsEtag(etag)) {
    etag_ = etag;
  } else {
    Complain(
        fmt::format("{}: the answer has no usable ETag, so changes are asked for every "
                    "{:.0f} s; {}",
                    Target(), kPause.seconds(), kGcpCure));
  }
  // Also a server that answers long polls at once is not asked without end.
  Succeeded(now, kPause);
}

}  // namespace millrace::notice
