// verify: whether a server still gives the answers of a request log, to the bit.
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "apps/cli/parse.h"
#include "apps/commands/commands.h"
#include "apps/verify/verify.h"
#include "base/file.h"
#include "base/progress.h"
#include "net/http/http_client.h"
#include "serve/observe/request_log.h"

namespace millrace::apps {
namespace {

constexpr int kConcurrencyMax = 256;
constexpr size_t kShownMax = 20;

struct VerifyFlags {
  std::string log, base_url = "http://127.0.0.1:8000", api_key;
  int concurrency = 8;
  bool json = false;
};

net::HttpCall CallFor(const VerifyFlags& flags, const net::Url& base, const LoggedLine& line) {
  net::HttpCall call{.method = "POST",
                     .url = base.Join(line.route),
                     .headers = {{"Content-Type", "application/json"}},
                     .body = line.body,
                     .unix_path = {}};
  if (!flags.api_key.empty()) {
    call.headers.emplace_back("Authorization", "Bearer " + flags.api_key);
  }
  return call;
}

// All lines, some at a time.
std::vector<Verdict> AskAll(const VerifyFlags& flags, const net::Url& base, net::HttpClient& http,
                            const std::vector<LoggedLine>& lines) {
  const SteadyClock clock;
  Progress progress("verify", ProgressUnit::kRequests, std::ssize(lines), stderr,
                    ProgressStyle::ForStream(stderr), clock);
  std::vector<Verdict> verdicts(lines.size());
  std::atomic<size_t> next = 0, done = 0;
  const auto work = [&] {
    for (size_t i = next++; i < lines.size(); i = next++) {
      const auto answer = http.Call(CallFor(flags, base, lines[i]));
      verdicts[i] = answer.ok() ? Compare(lines[i], answer->status, answer->body)
                                : Verdict{Sameness::kFailed, answer.status().ToString()};
      progress.Update(static_cast<int64_t>(++done));
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < flags.concurrency; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  progress.Finish();
  return verdicts;
}

Status RunVerify(const VerifyFlags& flags) {
  MR_ASSIGN_OR_RETURN(const net::Url base, net::ParseUrl(flags.base_url));
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.log, serve::kRequestLogBytesMax));
  auto lines = ParseRequestLog(text);
  if (!lines.ok()) return lines.status().WithContext(flags.log);
  MR_ASSIGN_OR_RETURN(const auto http, net::HttpClient::Start({}));
  const std::vector<Verdict> verdicts = AskAll(flags, base, *http, *lines);
  const VerifySummary summary = Summarize(*lines, verdicts, kShownMax);
  fmt::print("{}", flags.json ? summary.ToJson().dump(2) + "\n" : summary.ToText());
  return summary.status();
}

}  // namespace

std::unique_ptr<Command> MakeVerifyCommand() {
  auto command = std::make_unique<Command>();
  command->name = "verify";
  command->summary = "Ask a server the requests of a log again, and compare the bits";
  command->description =
      "Sends every request of a log (millrace serve --request-log FILE) to a server, with the seed "
      "that was drawn for it, and compares the tokens. The same weights give the same tokens on "
      "every layout, batch and number of threads, and across upgrades, as long as the workers are "
      "of one numeric class; an answer names its class in system_fingerprint. Ends with status 1 "
      "if an answer differs or is missing. The log can be of another machine.";
  command->examples = {
      {"millrace verify requests.jsonl", "does the server on this machine still say the same?"},
      {"millrace verify requests.jsonl --base-url http://10.0.0.2:8000 --json", "for scripts"}};
  auto flags = std::make_shared<VerifyFlags>();
  Option log = TextOption("log", "LOG", &flags->log);
  log.positional = log.command_line_only = true;
  log.kind = ValueKind::kFile;
  command->Add("Requests", std::move(log), "The file of --request-log");
  command->Add("Requests", IntOption("concurrency", "N", &flags->concurrency, 1, kConcurrencyMax),
               "How many are asked at once");
  command->Add("Server", TextOption("base-url", "URL", &flags->base_url), "Where it listens");
  command->Add("Server", TextOption("api-key", "KEY", &flags->api_key),
               "The key that it needs, if any");
  command->Add("Output", FlagOption("json", &flags->json), "Print the result as JSON");
  AddGeneralOptions(*command);
  command->log_level = "warning";
  command->validate = [flags] {
    if (flags->log.empty()) return InvalidArgument("give a LOG: the file of --request-log");
    return net::ParseUrl(flags->base_url).status().WithContext("--base-url");
  };
  command->run = [flags] { return RunVerify(*flags); };
  return command;
}

}  // namespace millrace::apps
