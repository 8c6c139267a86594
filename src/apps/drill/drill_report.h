// The result of a drill: what clients got, compared with the undisturbed answers, and what each
// disturbance cost. Pure functions over values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace millrace::apps {

// A request whose answer is the same everywhere: greedy, or sampled with a seed.
struct DrillRequest {
  std::string prompt;
  int max_tokens = 0;
  bool greedy = true;
  uint64_t seed = 0;
};
// `count` different requests, every second one greedy.
std::vector<DrillRequest> DrillRequests(int count, int max_tokens);

// One answer that a client got. Times are seconds since the drill began.
struct DrillAnswer {
  int client = 0;
  size_t request = 0;  // index of the DrillRequest
  std::string text;
  std::string error;  // why it never became whole; empty: it is whole
  int64_t tokens = 0;
  int connections = 0;  // more than one: its client resumed it
  double asked_s = 0;
  std::vector<double> pieces_s;  // when each piece of text came
};

// A disturbance, from the moment it begins until the cluster is whole again.
struct DrillStep {
  std::string name;  // "notice"
  double began_s = 0, ended_s = 0;
  int streams = 0;  // that ran when it began
  // Counters of the controller and of its scheduler, as differences over the step.
  int64_t finished = 0;  // requests that ended on a worker before it left
  int64_t moves = 0, moved_bytes = 0, replays = 0, recomputed_tokens = 0;
};

// The longest time in [from_s, to_s] without a piece of text, for an answer that was asked for at
// `asked_s`. A silence that is partly outside the interval counts whole.
double LongestSilence(const DrillAnswer& answer, double from_s, double to_s);

enum class AnswerVerdict : uint8_t {
  kIdentical,
  kDifferent,  // whole, with other text
  kLost,       // it never became whole, or lacks its end
};
// REQUIRES: answer.request < expected.size().
AnswerVerdict Compare(const DrillAnswer& answer, const std::vector<std::string>& expected);

struct DrillReport {
  struct Client {
    bool greedy = true;
    int answers = 0, identical = 0, resumed = 0;
    int64_t tokens = 0;
    double longest_silence_s = 0;
  };
  struct Step {
    DrillStep step;
    double longest_silence_s = 0;
  };
  std::vector<Client> clients;
  std::vector<Step> steps;
  int answers = 0, identical = 0, different = 0, lost = 0;
  int64_t tokens = 0;
  std::optional<std::string> first_fault;  // of an answer that is not identical

  // Every step was made while streams ran, and every answer is identical.
  bool passed() const;
  // Why not, in one sentence. REQUIRES: !passed().
  std::string Failure() const;
};
DrillReport Judge(const std::vector<DrillRequest>& requests,
                  const std::vector<std::string>& expected, const std::vector<DrillAnswer>& answers,
                  const std::vector<DrillStep>& steps);

// Tables for a person.
std::string ReportText(const DrillReport& report);
Json ReportJson(const DrillReport& report);

// The sum of the samples of a counter in a text of Prometheus; 0 if it has none.
double CounterIn(std::string_view metrics, std::string_view name);

}  // namespace millrace::apps
