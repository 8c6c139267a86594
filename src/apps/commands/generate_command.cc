// millrace generate: offline batch. Reads prompts and writes JSON lines in the order of completion.
// A stopped run continues when it is started again.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <deque>

#include "apps/cli/parse.h"
#include "apps/commands/commands.h"
#include "apps/commands/in_process.h"
#include "apps/common/prompt_file.h"
#include "apps/common/results_file.h"
#include "apps/common/sampling_flags.h"
#include "apps/common/signals.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/progress.h"

namespace millrace::apps {
namespace {

constexpr int kInFlightPerSequence = 2;  // so that a new sequence follows a finished one at once
constexpr Duration kSignalInterval = Duration::Millis(100);

struct GenerateFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string prompts, out, chat_template;
};

struct Answer {
  size_t item = 0;
  net::HttpResponse response;
};

// Passes answers from the service's threads to the command's.
class AnswerQueue {
 public:
  void Push(Answer answer) {
    MutexLock lock(mutex_);
    answers_.push_back(std::move(answer));
    came_.notify_one();
  }
  std::optional<Answer> Pop(Duration limit) {
    MutexLock lock(mutex_);
    came_.wait_for(lock, std::chrono::nanoseconds(limit.ns),
                   [this]() MR_REQUIRES(mutex_) { return !answers_.empty(); });
    if (answers_.empty()) return std::nullopt;
    Answer answer = std::move(answers_.front());
    answers_.pop_front();
    return answer;
  }

 private:
  Mutex mutex_;
  CondVar came_;
  std::deque<Answer> answers_ MR_GUARDED_BY(mutex_);  // at most one per request in flight
};

Json BatchLine(const PromptItem& item, int status, Json body) {
  const Json id = body.contains("id") ? body["id"] : Json();
  return {{"custom_id", item.id},
          {"id", "batch_req_" + item.id},
          {"response", {{"status_code", status}, {"request_id", id}, {"body", std::move(body)}}},
          {"error", nullptr}};
}

Json ChoiceOf(const Json& choice) {
  const Json text = choice.contains("message") ? choice["message"].value("content", Json())
                                               : choice.value("text", Json());
  return {{"text", text}, {"finish_reason", choice.value("finish_reason", Json())}};
}

// {"custom_id", "prompt", "text", "finish_reason", "usage"}: the fields of a plain batch.
Json PlainLine(const PromptItem& item, int status, const Json& body) {
  Json line = {{"custom_id", item.id}};
  const Json request = Json::parse(item.body, nullptr, false);
  for (const char* key : {"prompt", "messages"}) {
    if (request.contains(key)) line[key] = request[key];
  }
  if (status != 200) {
    line["error"] = body.value("error", Json(status));
    return line;
  }
  const Json choices = body.value("choices", Json::array());
  if (!choices.empty()) line.update(ChoiceOf(choices.front()));
  if (choices.size() > 1) {
    for (const Json& choice : choices) line["choices"].push_back(ChoiceOf(choice));
  }
  line["usage"] = body.value("usage", Json());
  return line;
}

class Batch {
 public:
  Batch(const GenerateFlags& flags, const std::vector<PromptItem>& items, InProcessApi& api,
        ResultsFile& results, StopSignals& signals)
      : in_flight_max_(static_cast<size_t>(flags.engine.max_num_seqs) * kInFlightPerSequence),
        items_(items),
        api_(api),
        results_(results),
        signals_(signals) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (results.Has(items[i].id)) {
        ++done_;
      } else {
        waiting_.push_back(i);
      }
    }
  }

  Status Run(Progress& progress) {
    progress.Update(done_);
    while (signals_.count() == 0 && !(waiting_.empty() && in_flight_ == 0)) {
      SubmitSome();
      const auto answer = answers_.Pop(kSignalInterval);
      if (!answer) continue;
      --in_flight_;
      MR_RETURN_IF_ERROR(Take(*answer));
      progress.SetNote(failed_ == 0 ? "" : fmt::format("{} failed", failed_));
      progress.Update(done_);
    }
    return results_.Sync();
  }

  int64_t done() const { return done_; }
  int64_t failed() const { return failed_; }

 private:
  // After a refusal for lack of room it submits one at a time, so that the service's queue can
  // drain.
  void SubmitSome() {
    const size_t limit = refused_ ? 1 : in_flight_max_;
    while (!waiting_.empty() && in_flight_ < limit) {
      const size_t index = waiting_.front();
      waiting_.pop_front();
      ++in_flight_;
      const bool chat = items_[index].endpoint == PromptEndpoint::kChat;
      api_.Post(chat ? "/v1/chat/completions" : "/v1/completions", items_[index].body,
                {.on_data = nullptr, .on_done = [this, index](net::HttpResponse response) {
                   answers_.Push({index, std::move(response)});
                 }});
    }
  }

  Status Take(const Answer& answer) {
    const int status = answer.response.status;
    refused_ = status == 429 || status == 503;
    if (refused_) {
      waiting_.push_back(answer.item);
      return OkStatus();
    }
    const PromptItem& item = items_[answer.item];
    auto body = ParseJson(answer.response.body);
    failed_ += status == 200 ? 0 : 1;
    if (!body.ok() || status >= 500) {  // not recorded, so the next run retries it
      MR_LOG(error, "{}: {}", Printable(item.id), Printable(answer.response.body));
      return OkStatus();
    }
    ++done_;
    return results_.Append(item.batch ? BatchLine(item, status, std::move(*body))
                                      : PlainLine(item, status, *body));
  }

  const size_t in_flight_max_;
  const std::vector<PromptItem>& items_;
  InProcessApi& api_;
  ResultsFile& results_;
  StopSignals& signals_;
  AnswerQueue answers_;
  std::deque<size_t> waiting_;  // items not submitted, or refused and to be retried
  size_t in_flight_ = 0;
  int64_t done_ = 0;  // items_ with a result
  int64_t failed_ = 0;
  bool refused_ = false;
};

Status RunBatch(const GenerateFlags& flags, const std::vector<PromptItem>& items,
                ResultsFile& results, StopSignals& signals) {
  const SteadyClock clock;
  signals.OnSignal([](int) { std::_Exit(130); });  // nothing is in progress that must be written
  MR_ASSIGN_OR_RETURN(
      const auto model,
      LoadWithProgress(flags.engine, {.chat_template = flags.chat_template}, clock));
  signals.OnSignal([](int count) {
    if (count > 1) std::_Exit(130);
  });
  fmt::print(stderr, "{}", Summary(*model));
  auto api = std::make_unique<InProcessApi>(*model, clock);
  Batch batch(flags, items, *api, results, signals);
  Progress progress("Prompts", ProgressUnit::kRequests, static_cast<int64_t>(items.size()), stderr,
                    ProgressStyle::ForStream(stderr), clock);
  const Status status = batch.Run(progress);
  progress.Finish();
  api.reset();  // no callback reaches the batch after this
  MR_RETURN_IF_ERROR(status);
  if (signals.count() > 0) {
    return Cancelled(fmt::format("stopped with {} of {} done; run the same command to continue",
                                 batch.done(), items.size()));
  }
  if (batch.failed() > 0) {
    return FailedPrecondition(fmt::format("{} of {} prompts failed; see \"error\" in {}",
                                          batch.failed(), items.size(), Printable(flags.out)));
  }
  return OkStatus();
}

Status RunGenerate(const GenerateFlags& flags) {
  StopSignals signals;
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.prompts, kPromptFileBytesMax));
  auto items = ParsePrompts(text, DumpJson(ToFields(flags.sampling)));
  if (!items.ok()) return items.status().WithContext(Printable(flags.prompts));
  const SteadyClock clock;
  MR_ASSIGN_OR_RETURN(const auto results, ResultsFile::Open(flags.out, clock));
  size_t done = 0;
  for (const PromptItem& item : *items) done += results->Has(item.id) ? 1 : 0;
  if (done > 0 || results->repaired_bytes() > 0) {
    MR_LOG(info, "{} of {} prompts are already in {}{}", done, items->size(), Printable(flags.out),
           results->repaired_bytes() > 0 ? "; removed an incomplete last line" : "");
  }
  if (done == items->size()) return OkStatus();
  return RunBatch(flags, *items, *results, signals);
}

}  // namespace

std::unique_ptr<Command> MakeGenerateCommand() {
  auto command = std::make_unique<Command>();
  command->name = "generate";
  command->summary = "Answer a file of prompts, without a server";
  command->description =
      "Runs a model in this process over a file of prompts and appends one JSON line per prompt to "
      "the output file, in the order of completion. After an interruption, run it again to "
      "continue: prompts that are already in the output file are skipped.";
  command->examples = {
      {"millrace generate models/demo --prompts prompts.txt --out answers.jsonl",
       "one prompt per line of text"},
      {"millrace generate models/demo --prompts batch.jsonl --out results.jsonl --temperature 0",
       "a file in the format of OpenAI's batch API"}};
  auto flags = std::make_shared<GenerateFlags>();
  AddEngineOptions(*command, &flags->engine);
  Option prompts = TextOption("prompts", "FILE", &flags->prompts);
  prompts.required = true;
  prompts.kind = ValueKind::kFile;
  command->Add("Files", std::move(prompts),
               "Text, one prompt per line; or JSON lines: {\"prompt\": ...}, or OpenAI's "
               "{\"custom_id\": ..., \"url\": ..., \"body\": ...}");
  Option out = TextOption("out", "FILE", &flags->out);
  out.required = true;
  out.kind = ValueKind::kFile;
  out.aliases = {"-o"};
  command->Add("Files", std::move(out), "JSON lines, appended as prompts finish");
  Option chat_template = TextOption("chat-template", "FILE", &flags->chat_template);
  chat_template.kind = ValueKind::kFile;
  command->Add("Files", std::move(chat_template), "A chat template instead of the model's own");
  AddContentFormatOption(*command, "Files", &flags->engine);
  AddSamplingOptions(*command, &flags->sampling);
  AddGeneralOptions(*command);
  command->validate = [flags] { return ValidateEngineFlags(flags->engine); };
  command->run = [flags] { return RunGenerate(*flags); };
  return command;
}

}  // namespace millrace::apps
