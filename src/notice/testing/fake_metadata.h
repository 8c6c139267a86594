// For tests: the metadata services of AWS, Google Cloud and Azure as they document themselves, with
// tokens that expire, long polls, other machines' events and acknowledgements. Tests set what holds
// and what goes wrong. Values and rules only; FakeRun asks in virtual time, watcher_test over HTTP.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "notice/source.h"

namespace millrace::notice::testing {

class FakeMetadata {
 public:
  virtual ~FakeMetadata() = default;

  // The answer, or nullopt while there is none: the same question is given again until there is.
  std::optional<Answer> Try(const Question& question, Time asked, const Moment& now);

  std::optional<Answer> instead;  // of every other answer
  bool hangs = false;
  std::map<std::string, Answer> instead_of;  // by the path that a target begins with
  std::optional<WallTime> clock;             // of the provider: sent as Date
  int questions = 0;

 protected:
  virtual std::optional<Answer> Serve(const Question& question, Time asked, const Moment& now) = 0;
};

Answer Ok(std::string body, net::HttpHeaders headers = {});
Answer Code(int code);

class FakeAws : public FakeMetadata {
 public:
  std::string action, rebalance, maintenance = "[]";  // as JSON; "": 404
  int token_seconds = 21600;
  bool tells_token_seconds = true;
  int tokens = 0;  // given

 private:
  std::optional<Answer> Serve(const Question& question, Time asked, const Moment& now) override;
  Time token_until_;
};

class FakeGcp : public FakeMetadata {
 public:
  std::string preempted = "FALSE", maintenance_event = "NONE";
  bool has_flavor = true, has_etag = true, waits = true;
  int waiting_questions = 0;

 private:
  std::optional<Answer> Serve(const Question& question, Time asked, const Moment& now) override;
};

class FakeAzure : public FakeMetadata {
 public:
  struct Event {
    std::string id, type, not_before;
    std::string status = "Scheduled";
    std::vector<std::string> resources = {"vm-1"};
  };
  std::string name = "vm-1";
  std::vector<Event> events;
  Duration enabling;                 // what the first question for events takes
  std::vector<std::string> started;  // acknowledged
  bool refuses_starts = false;
  int starts_asked = 0;

 private:
  std::optional<Answer> Serve(const Question& question, Time asked, const Moment& now) override;
};

// Asks what a source wants to ask, in virtual time.
class FakeRun {
 public:
  FakeRun(MetadataSource& source, FakeMetadata& fake) : source_(source), fake_(fake) {}

  void For(Duration time);
  // The first time from now on, at most `limit` later, at which current() is set, or is not.
  std::optional<Duration> Until(bool noticed, Duration limit);
  const std::optional<Notice>& current() const { return board_.current(); }
  // Until the current notice's deadline.
  double left_s() const { return (*current()->what.deadline - now_.time).seconds(); }
  Moment now() const { return now_; }
  WallTime wall(double after_s) const { return {now_.wall.s + static_cast<int64_t>(after_s)}; }

  std::vector<std::string> complaints;
  std::vector<Time> asked_at;

 private:
  void Step();

  MetadataSource& source_;
  FakeMetadata& fake_;
  NoticeBoard board_;
  Moment now_{Time{} + Duration::Seconds(1000), WallTime{1'800'000'000}};
  std::optional<Question> open_;
  Time open_since_;
};

std::string Rfc3339(WallTime time);
std::string Rfc1123(WallTime time);

}  // namespace millrace::notice::testing
