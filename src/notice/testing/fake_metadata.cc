#include "notice/testing/fake_metadata.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace millrace::notice::testing {
namespace {

constexpr Duration kTick = Duration::Millis(50);

std::string_view Path(const std::string& target) {
  return std::string_view(target).substr(0, target.find('?'));
}

// "" if the query does not have it.
std::string QueryValue(const std::string& target, const std::string& key) {
  const size_t query = target.find('?');
  if (query == std::string::npos) return "";
  const auto pairs = net::ParseQuery(std::string_view(target).substr(query + 1));
  if (!pairs.ok()) return "";
  for (const auto& [name, value] : *pairs) {
    if (name == key) return value;
  }
  return "";
}

std::tm Calendar(WallTime time) {
  const std::time_t seconds = time.s;
  std::tm calendar{};
  gmtime_r(&seconds, &calendar);
  return calendar;
}

}  // namespace

std::string Rfc3339(WallTime time) { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", Calendar(time)); }
std::string Rfc1123(WallTime time) {
  return fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", Calendar(time));
}

Answer Ok(std::string body, net::HttpHeaders headers) {
  return {.code = 200, .headers = std::move(headers), .body = std::move(body)};
}
Answer Code(int code) { return {.code = code}; }

std::optional<Answer> FakeMetadata::Try(const Question& question, Time asked, const Moment& now) {
  if (asked == now.time) ++questions;
  if (hangs) return std::nullopt;
  std::optional<Answer> answer = instead;
  for (const auto& [path, other] : instead_of) {
    if (question.target.starts_with(path)) answer = other;
  }
  if (!answer) answer = Serve(question, asked, now);
  if (answer && clock) answer->headers.emplace_back("Date", Rfc1123(*clock));
  return answer;
}

std::optional<Answer> FakeAws::Serve(const Question& question, Time, const Moment& now) {
  const std::string path(Path(question.target));
  if (path == "/latest/api/token") {
    const auto life = net::FindHeader(question.headers, "X-aws-ec2-metadata-token-ttl-seconds");
    if (question.method != "PUT" || !life) return Code(400);
    token_until_ = now.time + Duration::Seconds(token_seconds);
    Answer answer = Ok(fmt::format("token-{}", ++tokens));
    if (tells_token_seconds) {
      answer.headers = {{"X-aws-ec2-metadata-token-ttl-seconds", std::to_string(token_seconds)}};
    }
    return answer;
  }
  const auto token = net::FindHeader(question.headers, "X-aws-ec2-metadata-token");
  if (token != fmt::format("token-{}", tokens) || now.time >= token_until_) return Code(401);
  const std::string* found =
      path == "/latest/meta-data/spot/instance-action"               ? &action
      : path == "/latest/meta-data/events/recommendations/rebalance" ? &rebalance
      : path == "/latest/meta-data/events/maintenance/scheduled"     ? &maintenance
                                                                     : nullptr;
  return found == nullptr || found->empty() ? Code(404) : Ok(*found);
}

std::optional<Answer> FakeGcp::Serve(const Question& question, Time asked, const Moment& now) {
  if (net::FindHeader(question.headers, "Metadata-Flavor") != "Google") return Code(403);
  const std::string path(Path(question.target));
  const std::string start = "/computeMetadata/v1/instance/";
  const std::string* value = path == start + "preempted"           ? &preempted
                             : path == start + "maintenance-event" ? &maintenance_event
                                                                   : nullptr;
  if (value == nullptr) return Code(404);
  const std::string etag = fmt::format("etag-{}", *value);
  const std::string last = QueryValue(question.target, "last_etag");
  if (QueryValue(question.target, "wait_for_change") == "true" && waits) {
    if (asked == now.time) ++waiting_questions;
    const Duration limit =
        Duration::Seconds(std::atof(QueryValue(question.target, "timeout_sec").c_str()));
    if (last == etag && now.time - asked < limit) return std::nullopt;
  }
  Answer answer = Ok(*value + "\n");
  if (has_flavor) answer.headers.emplace_back("Metadata-Flavor", "Google");
  if (has_etag) answer.headers.emplace_back("ETag", etag);
  return answer;
}

std::optional<Answer> FakeAzure::Serve(const Question& question, Time asked, const Moment& now) {
  if (net::FindHeader(question.headers, "Metadata") != "true") return Code(400);
  const std::string path(Path(question.target));
  if (QueryValue(question.target, "api-version").empty()) return Code(400);
  if (path == "/metadata/instance/compute/name") return Ok(name);
  if (path != "/metadata/scheduledevents") return Code(404);
  if (now.time - asked < enabling) return std::nullopt;
  enabling = {};
  if (question.method == "POST") {
    ++starts_asked;
    const auto body = ParseJson(question.body);
    if (!body.ok() || refuses_starts) return Code(400);
    for (const Json& request : body->at("StartRequests")) {
      const auto id = request.at("EventId").get<std::string>();
      const auto event = std::ranges::find(events, id, &Event::id);
      if (event == events.end()) return Code(400);
      event->status = "Started";
      event->not_before.clear();
      started.push_back(id);
    }
    return Ok("");
  }
  Json document = {{"DocumentIncarnation", 1}, {"Events", Json::array()}};
  for (const Event& event : events) {
    document["Events"].push_back({{"EventId", event.id},
                                  {"EventStatus", event.status},
                                  {"EventType", event.type},
                                  {"ResourceType", "VirtualMachine"},
                                  {"Resources", event.resources},
                                  {"NotBefore", event.not_before},
                                  {"Description", ""},
                                  {"EventSource", "Platform"},
                                  {"DurationInSeconds", -1}});
  }
  return Ok(document.dump());
}

void FakeRun::Step() {
  if (!open_ && now_.time >= source_.due()) {
    open_ = source_.Next(now_);
    open_since_ = now_.time;
    asked_at.push_back(now_.time);
  }
  if (open_) {
    std::optional<Answer> answer = fake_.Try(*open_, open_since_, now_);
    if (!answer && now_.time - open_since_ >= open_->limit) {
      answer = Answer{.status = Status(StatusCode::kDeadlineExceeded, "it did not answer in time")};
    }
    if (answer) {
      open_.reset();
      source_.OnAnswer(*answer, now_);
      board_.Put(0, source_.Notices());
      for (std::string& text : source_.TakeComplaints()) complaints.push_back(std::move(text));
      if (now_.time >= source_.due()) return;  // asks again at once
    }
  }
  const int64_t before_s = now_.time.ns / 1'000'000'000;
  now_.time = now_.time + kTick;
  now_.wall.s += now_.time.ns / 1'000'000'000 - before_s;
}

void FakeRun::For(Duration time) {
  for (const Time end = now_.time + time; now_.time < end;) Step();
}

std::optional<Duration> FakeRun::Until(bool noticed, Duration limit) {
  const Time since = now_.time;
  while (current().has_value() != noticed) {
    if (now_.time - since >= limit) return std::nullopt;
    Step();
  }
  return now_.time - since;
}

}  // namespace millrace::notice::testing
