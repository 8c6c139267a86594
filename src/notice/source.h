// Source: one place where notices come from. MetadataSource: a provider's metadata service, as a
// state machine: it says what to ask and when, and is told the answers and the time. LocalSource:
// something on this machine that is looked at now and then.
//
// What a service answers is not trusted: an answer that cannot be read changes nothing, is
// complained of once, and is asked for again after a back-off.
//
// Owned by the watcher and used on its thread. A MetadataSource has no thread, socket or clock.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "net/http/http.h"
#include "notice/notice_board.h"
#include "notice/wall_time.h"

namespace millrace::notice {

inline constexpr size_t kAnswerBytesMax = 256 * 1024;

class Source {
 public:
  static constexpr size_t kComplaintsMax = 32;  // of one source, in the life of the process

  virtual ~Source() = default;

  // What holds by the latest answer.
  virtual std::vector<Notice> Notices() const = 0;
  // Whether the worker has handed over everything.
  virtual void SetDrained(bool) {}
  // What went wrong, with cause and cure: each text once.
  std::vector<std::string> TakeComplaints() { return std::exchange(complaints_, {}); }

 protected:
  void Complain(const std::string& text);

 private:
  std::set<std::string> known_complaints_;
  std::vector<std::string> complaints_;
};

class LocalSource : public Source {
 public:
  // Must not block. Called every `period()`.
  virtual void Look(const Moment& now) = 0;
  virtual Duration period() const = 0;
};

struct Question {
  std::string method = "GET";
  std::string target;  // path and query
  net::HttpHeaders headers;
  std::string body;
  Duration limit = Duration::Seconds(2);  // for the whole answer
};
struct Answer {
  Status status;  // not ok: there is none, or it is too large
  int code = 0;
  net::HttpHeaders headers;
  std::string body;
};

class MetadataSource : public Source {
 public:
  static constexpr Duration kBackOffFirst = Duration::Seconds(1);
  static constexpr Duration kBackOffMost = Duration::Seconds(10);  // notices are short

  // When Next is to be called.
  Time due() const { return due_; }
  // REQUIRES: due() has come, and the answer to the question before has been given.
  virtual Question Next(const Moment& now) = 0;
  virtual void OnAnswer(const Answer& answer, const Moment& now) = 0;

 protected:
  void AskAt(Time time) { due_ = time; }
  // The answer was as it should be; the next question follows after `pause`.
  void Succeeded(const Moment& now, Duration pause);
  void Failed(const Moment& now, const std::string& complaint);
  // The next question follows as after the latest success or failure.
  Duration back_off() const { return back_off_; }

 private:
  Time due_;
  Duration back_off_;  // 0: the latest answer was as it should be
};

// The wall clock of the provider, if the answer tells its time; otherwise this machine's. A notice
// names a time by the provider's clock, and a machine's own may be minutes off.
WallTime ProviderWall(const Answer& answer, const Moment& now);

// Why an answer without the expected code is of no use: "does not answer: ...", "answers HTTP 503".
std::string WhyUseless(const Answer& answer);

// The answer's body. kInvalidArgument: it is no JSON, or nested too deeply.
Result<Json> ReadJson(const Answer& answer);
// An object's text, "" if there is none of at most kFieldBytesMax bytes.
inline constexpr size_t kFieldBytesMax = 256;
std::string TextOf(const Json& object, const char* key);

}  // namespace millrace::notice
