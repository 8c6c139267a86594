#include "notice/aws.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/log.h"

namespace millrace::notice {
namespace {

constexpr int kTokenSeconds = 21600;  // the longest that the service gives
constexpr size_t kTokenBytesMax = 1024;
constexpr double kRenewAfter = 0.9;  // of a token's life
constexpr char kTokenLife[] = "X-aws-ec2-metadata-token-ttl-seconds";
constexpr std::array<const char*, 3> kTargets = {
    "/latest/meta-data/spot/instance-action",
    "/latest/meta-data/events/recommendations/rebalance",
    "/latest/meta-data/events/maintenance/scheduled",
};
constexpr char kCure[] =
    "allow version 2 of the instance metadata service; in a container, set the instance's "
    "HttpPutResponseHopLimit to 2; --notice-source none stops asking";

bool IsToken(const std::string& text) {
  return !text.empty() && text.size() <= kTokenBytesMax &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; });
}

int TokenSeconds(const Answer& answer) {
  const auto text = net::FindHeader(answer.headers, kTokenLife);
  int seconds = kTokenSeconds;
  if (text) std::from_chars(text->data(), text->data() + text->size(), seconds);
  return std::clamp(seconds, 1, kTokenSeconds);
}

Notice MakeNotice(NoticeKind kind, bool hard, std::optional<Time> deadline, std::string id) {
  return {.what = {.origin = {NoticeSource::kAws, kind}, .hard = hard, .deadline = deadline},
          .id = std::move(id)};
}

}  // namespace

Result<std::vector<Notice>> ReadAwsAction(const Answer& answer, const Moment& now) {
  MR_ASSIGN_OR_RETURN(const Json json, ReadJson(answer));
  const std::string action = TextOf(json, "action"), time = TextOf(json, "time");
  const auto when = ParseRfc3339(time);
  const bool hibernates = action == "hibernate";
  if ((action != "terminate" && action != "stop" && !hibernates) || !when) {
    return InvalidArgument(
        "expected an action (terminate, stop or hibernate) and an RFC 3339 time");
  }
  // Hibernation begins with its notice.
  const Moment there{now.time, ProviderWall(answer, now)};
  const Time deadline =
      DeadlineFor(when, hibernates ? Duration() : AwsSource::kInterruptionMost, there);
  const NoticeKind kind = action == "terminate" ? NoticeKind::kTerminate : NoticeKind::kPreempt;
  return std::vector{MakeNotice(kind, true, deadline, action + "@" + time)};
}

Result<std::vector<Notice>> ReadAwsRebalance(const Answer& answer) {
  MR_ASSIGN_OR_RETURN(const Json json, ReadJson(answer));
  const std::string time = TextOf(json, "noticeTime");
  if (!ParseRfc3339(time)) return InvalidArgument("expected noticeTime, an RFC 3339 time");
  return std::vector{MakeNotice(NoticeKind::kRebalance, false, std::nullopt, "rebalance@" + time)};
}

// The machine is rebooted, stopped or retired; `system-maintenance` only disturbs it.
Result<std::vector<Notice>> ReadAwsMaintenance(const Answer& answer, const Moment& now) {
  MR_ASSIGN_OR_RETURN(const Json json, ReadJson(answer));
  if (!json.is_array() || json.size() > AwsSource::kEventsMax) {
    return InvalidArgument(
        fmt::format("expected a list of at most {} events", AwsSource::kEventsMax));
  }
  const Moment there{now.time, ProviderWall(answer, now)};
  std::vector<Notice> notices;
  for (const Json& event : json) {
    const std::string code = TextOf(event, "Code"), id = TextOf(event, "EventId");
    const std::string time = TextOf(event, "NotBefore"), state = TextOf(event, "State");
    const auto when = ParseRfc1123(time);
    if (code.empty() || id.empty() || !when) {
      return InvalidArgument("expected events with Code, EventId and NotBefore");
    }
    if (state == "completed" || state == "canceled") continue;
    const Duration lead = AwsSource::kMaintenanceLead;
    const bool soon = when->s - there.wall.s <= static_cast<int64_t>(lead.seconds());
    const bool hard = soon && code != "system-maintenance";
    notices.push_back(
        MakeNotice(NoticeKind::kMaintenance, hard,
                   soon ? std::optional(DeadlineFor(when, lead, there)) : std::nullopt,
                   fmt::format("{}@{}{}", id, time, soon ? "!" : "")));
    notices.back().cancelable = true;
  }
  return notices;
}

Question AwsSource::Next(const Moment& now) {
  asked_token_ = !token_ || now.time >= token_->renew_at;
  if (asked_token_) {
    return {.method = "PUT",
            .target = "/latest/api/token",
            .headers = {{kTokenLife, std::to_string(kTokenSeconds)}}};
  }
  return {.target = kTargets.at(topic_), .headers = {{"X-aws-ec2-metadata-token", token_->text}}};
}

void AwsSource::OnAnswer(const Answer& answer, const Moment& now) {
  if (asked_token_) {
    OnToken(answer, now);
  } else {
    OnTopic(answer, now);
  }
}

void AwsSource::OnToken(const Answer& answer, const Moment& now) {
  token_.reset();
  if (!answer.status.ok() || answer.code != 200 || !IsToken(answer.body)) {
    const std::string why = answer.status.ok() && answer.code == 200
                                ? std::string("its token is empty or not printable")
                                : WhyUseless(answer);
    return Failed(now, fmt::format("the metadata service gives no token: {}; {}", why, kCure));
  }
  const auto life = Duration::Seconds(kRenewAfter * TokenSeconds(answer));
  token_ = Token{answer.body, now.time + life};
  AskAt(now.time);
}

void AwsSource::OnTopic(const Answer& answer, const Moment& now) {
  if (answer.status.ok() && answer.code == 401) {
    token_.reset();
    if (!std::exchange(token_refused_, true)) return AskAt(now.time);
    return EndTopic(now,
                    "it refuses the token that it gave (HTTP 401); its token service and its "
                    "data disagree, so check what answers at this address");
  }
  if (answer.status.ok() && answer.code == 404) {  // the usual case: there is none
    notices_.at(topic_).clear();
    return EndTopic(now, "");
  }
  if (!answer.status.ok() || answer.code != 200) {
    return EndTopic(now, fmt::format("{}; {}", WhyUseless(answer), kCure));
  }
  auto notices = topic_ == kAction      ? ReadAwsAction(answer, now)
                 : topic_ == kRebalance ? ReadAwsRebalance(answer)
                                        : ReadAwsMaintenance(answer, now);
  if (!notices.ok()) {
    return EndTopic(now, fmt::format("its answer cannot be read: {}; check what answers at this "
                                     "address",
                                     Printable(notices.status().message())));
  }
  notices_.at(topic_) = std::move(*notices);
  EndTopic(now, "");
}

// Goes on to the next topic, also after a failure: one that never answers must not hide the others.
// `complaint` "": the answer was as it should be.
void AwsSource::EndTopic(const Moment& now, const std::string& complaint) {
  const std::string target = kTargets.at(topic_);
  token_refused_ = false;
  const bool last =
      topic_ == kMaintenance || (topic_ == kRebalance && round_ % kMaintenanceEvery != 0);
  if (complaint.empty()) {
    Succeeded(now, last ? kPeriod : Duration());
  } else {
    Failed(now, fmt::format("{}: {}", target, complaint));
    if (last) AskAt(now.time + std::max(kPeriod, back_off()));
  }
  topic_ = last ? kAction : static_cast<Topic>(topic_ + 1);
  if (last) ++round_;
}

std::vector<Notice> AwsSource::Notices() const {
  std::vector<Notice> all;
  for (const auto& of_topic : notices_) all.insert(all.end(), of_topic.begin(), of_topic.end());
  return all;
}

}  // namespace millrace::notice
