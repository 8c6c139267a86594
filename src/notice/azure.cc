#include "notice/azure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/log.h"

namespace millrace::notice {
namespace {

constexpr char kNameTarget[] = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
constexpr char kEventsTarget[] = "/metadata/scheduledevents?api-version=2020-07-01";
constexpr char kAzureCure[] = "check --notice-endpoint; --notice-source none stops asking";

bool SameName(const std::string& a, const std::string& b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

struct AzureKind {
  NoticeKind kind = NoticeKind::kMaintenance;
  bool hard = true;
  Duration most = AzureSource::kOthersMost;
  bool takes_away = false;  // for good: it may start as soon as the worker has drained
};

AzureKind KindOf(const std::string& type) {
  if (type == "Preempt") {
    return AzureKind{NoticeKind::kPreempt, true, AzureSource::kPreemptionMost, true};
  }
  if (type == "Terminate") {
    return AzureKind{NoticeKind::kTerminate, true, AzureSource::kOthersMost, true};
  }
  if (type == "Reboot" || type == "Redeploy") return AzureKind{};
  if (type == "Freeze") return AzureKind{.hard = false};  // it pauses for seconds
  return AzureKind{.kind = NoticeKind::kUnknown, .hard = false};
}

// nullopt: it does not concern this machine.
Result<std::optional<AzureEvent>> ReadEvent(const Json& json, const std::string& name,
                                            const Moment& now) {
  const std::string id = TextOf(json, "EventId"), type = TextOf(json, "EventType");
  const std::string state = TextOf(json, "EventStatus"), time = TextOf(json, "NotBefore");
  const auto resources = json.is_object() ? json.find("Resources") : json.end();
  if (id.empty() || type.empty() || state.empty() || resources == json.end() ||
      !resources->is_array() || resources->size() > AzureSource::kNamesMax) {
    return InvalidArgument("expected events with EventId, EventType, EventStatus and Resources");
  }
  const bool ours = std::ranges::any_of(*resources, [&](const Json& resource) {
    return resource.is_string() && SameName(resource.get_ref<const std::string&>(), name);
  });
  if (!ours) return std::optional<AzureEvent>();
  const AzureKind kind = KindOf(type);
  const bool scheduled = state == "Scheduled";
  const auto when = ParseRfc1123(time);
  if (scheduled && !when) return InvalidArgument("expected NotBefore, an RFC 1123 time");
  AzureEvent event;
  event.id = id;
  event.notice.id = id + "@" + time;
  event.notice.cancelable = scheduled;
  event.notice.what = {.origin = {NoticeSource::kAzure, kind.kind},
                       .hard = kind.hard,
                       .deadline = DeadlineFor(when, scheduled ? kind.most : Duration(), now)};
  event.may_start = scheduled && kind.takes_away && resources->size() == 1;
  return std::optional(std::move(event));
}

}  // namespace

Result<std::vector<AzureEvent>> ReadAzureEvents(const Answer& answer, const std::string& name,
                                                const Moment& now) {
  MR_ASSIGN_OR_RETURN(const Json json, ReadJson(answer));
  const auto list = json.is_object() ? json.find("Events") : json.end();
  if (list == json.end() || !list->is_array() || list->size() > AzureSource::kEventsMax) {
    return InvalidArgument(
        fmt::format("expected Events, a list of at most {}", AzureSource::kEventsMax));
  }
  const Moment there{now.time, ProviderWall(answer, now)};
  std::vector<AzureEvent> events;
  for (const Json& each : *list) {
    MR_ASSIGN_OR_RETURN(auto event, ReadEvent(each, name, there));
    if (event) events.push_back(std::move(*event));
  }
  return events;
}

const AzureEvent* AzureSource::ToStart() const {
  if (!drained_) return nullptr;
  const auto event = std::ranges::find_if(
      events_, [&](const AzureEvent& e) { return e.may_start && !started_.contains(e.id); });
  return event == events_.end() ? nullptr : &*event;
}

Question AzureSource::Next(const Moment&) {
  Question question{.target = kEventsTarget, .headers = {{"Metadata", "true"}}};
  if (name_.empty()) {
    asked_ = Asked::kName;
    question.target = kNameTarget;
  } else if (const AzureEvent* event = ToStart()) {
    asked_ = Asked::kStart;
    starting_ = event->id;
    question.method = "POST";
    question.headers.emplace_back("Content-Type", "application/json");
    Json body, start;
    start["EventId"] = event->id;
    body["StartRequests"].push_back(std::move(start));
    question.body = DumpJson(body);
  } else {
    asked_ = Asked::kEvents;
    if (!enabled_) question.limit = kFirstAnswer;
  }
  return question;
}

void AzureSource::OnAnswer(const Answer& answer, const Moment& now) {
  switch (asked_) {
    case Asked::kName: return OnName(answer, now);
    case Asked::kEvents: return OnEvents(answer, now);
    case Asked::kStart: return OnStart(answer, now);
  }
}

void AzureSource::OnName(const Answer& answer, const Moment& now) {
  const bool usable = answer.status.ok() && answer.code == 200 && !answer.body.empty() &&
                      answer.body.size() <= kFieldBytesMax;
  if (!usable) {
    const std::string why = answer.status.ok() && answer.code == 200
                                ? std::string("its answer is no machine's name")
                                : WhyUseless(answer);
    return Failed(now, fmt::format("{}: {}; {}", kNameTarget, why, kAzureCure));
  }
  name_ = answer.body;
  AskAt(now.time);
}

void AzureSource::OnEvents(const Answer& answer, const Moment& now) {
  if (!answer.status.ok() || answer.code != 200) {
    return Failed(now, fmt::format("{}: {}; {}", kEventsTarget, WhyUseless(answer), kAzureCure));
  }
  auto events = ReadAzureEvents(answer, name_, now);
  if (!events.ok()) {
    return Failed(now, fmt::format("{}: its answer cannot be read: {}; {}", kEventsTarget,
                                   Printable(events.status().message()), kAzureCure));
  }
  enabled_ = true;
  events_ = std::move(*events);
  std::erase_if(started_, [&](const std::string& id) {
    return std::ranges::find(events_, id, &AzureEvent::id) == events_.end();
  });
  Succeeded(now, ToStart() != nullptr ? Duration() : kPeriod);
}

// The events are read again at once: this one has started.
void AzureSource::OnStart(const Answer& answer, const Moment& now) {
  if (answer.status.ok() && answer.code == 200) {
    started_.insert(starting_);
    start_tries_ = 0;
    return AskAt(now.time);
  }
  Failed(now, fmt::format("{}: the event could not be acknowledged: {}; it starts by itself when "
                          "its time has come",
                          kEventsTarget, WhyUseless(answer)));
  if (++start_tries_ < kStartTriesMax) return;
  started_.insert(starting_);
  start_tries_ = 0;
}

std::vector<Notice> AzureSource::Notices() const {
  std::vector<Notice> all;
  for (const AzureEvent& event : events_) all.push_back(event.notice);
  return all;
}

}  // namespace millrace::notice
