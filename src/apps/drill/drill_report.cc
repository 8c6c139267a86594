#include "apps/drill/drill_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "apps/common/text_table.h"
#include "base/check.h"
#include "base/log.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr size_t kShownBytes = 40;  // of a text around its first difference

constexpr std::array<std::string_view, 8> kOpenings = {
    "Once upon a time there was",         "The harbour lay still in the fog, and",
    "My grandmother kept a box in which", "On the first day of the long winter",
    "Nobody in the village knew why",     "The machine in the cellar had begun to",
    "Far beyond the last row of hills",   "When the letter came at last,",
};

size_t FirstDifference(std::string_view a, std::string_view b) {
  const auto shorter = std::min(a.size(), b.size());
  size_t at = 0;
  while (at < shorter && a[at] == b[at]) ++at;
  return at;
}

std::string FaultText(const DrillAnswer& answer, const std::string& expected) {
  const std::string which =
      fmt::format("stream {}, request {}", answer.client + 1, answer.request + 1);
  if (!answer.error.empty()) {
    return fmt::format("{}: {} after {} of {} bytes", which, answer.error, answer.text.size(),
                       expected.size());
  }
  const size_t at = FirstDifference(answer.text, expected);
  return fmt::format("{}: byte {} begins '{}', and undisturbed '{}'", which, at,
                     Printable(std::string_view(answer.text).substr(at), kShownBytes),
                     Printable(std::string_view(expected).substr(at), kShownBytes));
}

std::string SecondsText(double seconds) { return fmt::format("{:.2f} s", seconds); }

}  // namespace

std::vector<DrillRequest> DrillRequests(int count, int max_tokens) {
  std::vector<DrillRequest> requests;
  for (int i = 0; i < count; ++i) {
    const auto number = static_cast<size_t>(i);
    const std::string_view opening = kOpenings[number % kOpenings.size()];
    const size_t chapter = number / kOpenings.size() + 1;
    requests.push_back({.prompt = fmt::format("Chapter {}. {}", chapter, opening),
                        .max_tokens = max_tokens,
                        .greedy = i % 2 == 0,
                        .seed = number});
  }
  return requests;
}

double LongestSilence(const DrillAnswer& answer, double from_s, double to_s) {
  double longest = 0, last = answer.asked_s;
  for (const double at : answer.pieces_s) {
    if (at >= from_s && last <= to_s) longest = std::max(longest, at - last);
    last = at;
  }
  return longest;
}

AnswerVerdict Compare(const DrillAnswer& answer, const std::vector<std::string>& expected) {
  MR_CHECK(answer.request < expected.size());
  if (!answer.error.empty()) return AnswerVerdict::kLost;
  const std::string& whole = expected[answer.request];
  if (answer.text == whole) return AnswerVerdict::kIdentical;
  return whole.starts_with(answer.text) ? AnswerVerdict::kLost : AnswerVerdict::kDifferent;
}

DrillReport Judge(const std::vector<DrillRequest>& requests,
                  const std::vector<std::string>& expected, const std::vector<DrillAnswer>& answers,
                  const std::vector<DrillStep>& steps) {
  DrillReport report;
  for (const DrillRequest& request : requests) report.clients.push_back({.greedy = request.greedy});
  for (const DrillStep& step : steps) report.steps.push_back({step, 0});
  for (const DrillAnswer& answer : answers) {
    const AnswerVerdict verdict = Compare(answer, expected);
    MR_CHECK(static_cast<size_t>(answer.client) < report.clients.size());
    DrillReport::Client& client = report.clients[static_cast<size_t>(answer.client)];
    ++report.answers;
    ++client.answers;
    report.identical += verdict == AnswerVerdict::kIdentical ? 1 : 0;
    client.identical += verdict == AnswerVerdict::kIdentical ? 1 : 0;
    report.different += verdict == AnswerVerdict::kDifferent ? 1 : 0;
    report.lost += verdict == AnswerVerdict::kLost ? 1 : 0;
    client.resumed += answer.connections > 1 ? 1 : 0;
    client.tokens += answer.tokens;
    report.tokens += answer.tokens;
    if (verdict != AnswerVerdict::kIdentical && !report.first_fault) {
      report.first_fault = FaultText(answer, expected[answer.request]);
    }
    if (answer.pieces_s.empty()) continue;
    const double end_s = answer.pieces_s.back();
    client.longest_silence_s =
        std::max(client.longest_silence_s, LongestSilence(answer, answer.asked_s, end_s));
    for (DrillReport::Step& step : report.steps) {
      step.longest_silence_s = std::max(
          step.longest_silence_s, LongestSilence(answer, step.step.began_s, step.step.ended_s));
    }
  }
  return report;
}

bool DrillReport::passed() const {
  return answers > 0 && identical == answers && !steps.empty() &&
         std::ranges::all_of(clients, [](const Client& client) { return client.answers > 0; }) &&
         std::ranges::all_of(steps, [](const Step& step) { return step.step.streams > 0; });
}

std::string DrillReport::Failure() const {
  MR_CHECK(!passed());
  if (first_fault) {
    return fmt::format("{} of {} answers differ and {} are not whole; {}", different, answers, lost,
                       *first_fault);
  }
  const auto idle =
      std::ranges::find_if(steps, [](const Step& step) { return step.step.streams == 0; });
  if (idle != steps.end()) {
    return fmt::format("no stream ran when the step '{}' began, so it shows nothing",
                       idle->step.name);
  }
  return "not every stream got an answer, so nothing is shown";
}

std::string ReportText(const DrillReport& report) {
  std::vector<std::vector<std::string>> rows = {{"STEP", "TOOK", "STREAMS", "LONGEST SILENCE",
                                                 "FINISHED THERE", "MOVED", "KV MOVED", "REPLAYED",
                                                 "TOKENS COMPUTED AGAIN"}};
  for (const auto& [step, silence_s] : report.steps) {
    rows.push_back({step.name, SecondsText(step.ended_s - step.began_s), FormatCount(step.streams),
                    SecondsText(silence_s), FormatCount(step.finished), FormatCount(step.moves),
                    FormatBytes(step.moved_bytes), FormatCount(step.replays),
                    FormatCount(step.recomputed_tokens)});
  }
  std::string out = TextTable(rows) + "\n";
  rows = {{"STREAM", "SAMPLING", "ANSWERS", "IDENTICAL", "RESUMED", "TOKENS", "LONGEST SILENCE"}};
  for (size_t i = 0; i < report.clients.size(); ++i) {
    const DrillReport::Client& client = report.clients[i];
    rows.push_back({FormatCount(static_cast<int64_t>(i) + 1), client.greedy ? "greedy" : "seeded",
                    FormatCount(client.answers), FormatCount(client.identical),
                    FormatCount(client.resumed), FormatCount(client.tokens),
                    SecondsText(client.longest_silence_s)});
  }
  out += TextTable(rows) + "\n";
  if (report.passed()) {
    return out + fmt::format(
                     "All {} answers with {} tokens are the same, to the byte, as those of "
                     "one undisturbed process. None was lost.\n",
                     FormatCount(report.answers), FormatCount(report.tokens));
  }
  return out + fmt::format("FAILED: {}\n", report.Failure());
}

Json ReportJson(const DrillReport& report) {
  Json streams = Json::array(), steps = Json::array();
  for (const DrillReport::Client& client : report.clients) {
    streams.push_back({{"sampling", client.greedy ? "greedy" : "seeded"},
                       {"answers", client.answers},
                       {"identical", client.identical},
                       {"resumed", client.resumed},
                       {"tokens", client.tokens},
                       {"longest_silence_s", client.longest_silence_s}});
  }
  for (const auto& [step, silence_s] : report.steps) {
    steps.push_back({{"step", step.name},
                     {"began_s", step.began_s},
                     {"ended_s", step.ended_s},
                     {"streams", step.streams},
                     {"longest_silence_s", silence_s},
                     {"finished_there", step.finished},
                     {"moves", step.moves},
                     {"moved_bytes", step.moved_bytes},
                     {"replays", step.replays},
                     {"recomputed_tokens", step.recomputed_tokens}});
  }
  return {{"passed", report.passed()},
          {"failure", report.passed() ? Json() : Json(report.Failure())},
          {"answers", report.answers},
          {"identical", report.identical},
          {"different", report.different},
          {"lost", report.lost},
          {"tokens", report.tokens},
          {"steps", steps},
          {"streams", streams}};
}

double CounterIn(std::string_view metrics, std::string_view name) {
  double sum = 0;
  for (size_t at = 0; at < metrics.size();) {
    const size_t end = std::min(metrics.find('\n', at), metrics.size());
    const std::string_view line = metrics.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(name)) continue;
    const std::string_view rest = line.substr(name.size());
    if (!rest.starts_with(' ') && !rest.starts_with('{')) continue;  // a longer name
    const size_t value = line.rfind(' ');
    const auto read = ParseReal(line.substr(value + 1));
    if (read.ok()) sum += *read;
  }
  return sum;
}

}  // namespace millrace::apps
