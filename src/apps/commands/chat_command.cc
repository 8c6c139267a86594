// millrace chat: talk to a model in the terminal, in this process.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "apps/cli/parse.h"
#include "apps/commands/answer_printer.h"
#include "apps/commands/commands.h"
#include "apps/commands/in_process.h"
#include "apps/common/sampling_flags.h"
#include "apps/common/signals.h"
#include "base/log.h"
#include "base/mutex.h"
#include "net/http/sse.h"

namespace millrace::apps {
namespace {

constexpr size_t kLineBytesMax = 1 << 20;

struct ChatFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string chat_template, system;
  bool reasoning = true;
};

AnswerStyle StyleOf(const ChatFlags& flags) {
  const char* no_color = std::getenv("NO_COLOR");  // no-color.org
  const bool plain = no_color != nullptr && *no_color != '\0';
  return {.reasoning = flags.reasoning, .dim = isatty(STDOUT_FILENO) == 1 && !plain};
}

// One answer in progress. The service's threads fill it; the command's thread waits for it.
class PendingAnswer {
 public:
  explicit PendingAnswer(AnswerStyle style)
      : parser_([this](std::string_view, std::string_view data) { Event(data); }),
        printer_(style, [](std::string_view text) {
          std::fwrite(text.data(), 1, text.size(), stdout);
          std::fflush(stdout);
        }) {}

  void Data(std::string_view part) {
    const Status status = parser_.Feed(part);
    if (!status.ok()) error_ = status.message();
  }
  void Done(const net::HttpResponse& response) {
    MutexLock lock(mutex_);
    status_ = response.status;
    if (!response.body.empty()) Event(response.body);
    done_ = true;
    changed_.notify_all();
  }
  void Wait() {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() MR_REQUIRES(mutex_) { return done_; });
    printer_.End();
  }

  // Call after Wait.
  const std::string& text() const { return text_; }
  const std::string& error() const { return error_; }
  const std::string& finish_reason() const { return finish_reason_; }

 private:
  void Event(std::string_view data) {
    const auto event = ParseJson(data);
    if (!event.ok() || !event->is_object()) return;  // [DONE]
    if (event->contains("error")) {
      error_ = (*event)["error"].value("message", "unknown error");
      return;
    }
    const Json choices = event->value("choices", Json::array());
    if (choices.empty()) return;
    const Json delta = choices[0].value("delta", Json::object());
    printer_.Delta(delta);
    if (delta.contains("content") && delta["content"].is_string()) {
      text_ += delta["content"].get<std::string>();
    }
    const Json reason = choices[0].value("finish_reason", Json());
    if (reason.is_string()) finish_reason_ = reason.get<std::string>();
  }

  net::SseParser parser_;
  AnswerPrinter printer_;
  std::string text_, error_, finish_reason_;
  Mutex mutex_;
  CondVar changed_;
  int status_ MR_GUARDED_BY(mutex_) = 0;
  bool done_ MR_GUARDED_BY(mutex_) = false;
};

class Conversation {
 public:
  Conversation(const ChatFlags& flags, InProcessApi& api) : flags_(flags), api_(api) { Reset(); }

  void Reset() {
    messages_ = Json::array();
    if (!flags_.system.empty()) {
      messages_.push_back({{"role", "system"}, {"content", flags_.system}});
    }
  }

  // Prints the answer as it arrives. After an error the question is removed from the conversation.
  Status Ask(const std::string& question) {
    messages_.push_back({{"role", "user"}, {"content", question}});
    Json body = ToFields(flags_.sampling);
    body["messages"] = messages_;
    body["stream"] = true;
    PendingAnswer answer(StyleOf(flags_));
    auto reply = api_.Post("/v1/chat/completions", DumpJson(body),
                           {.on_data = [&answer](std::string_view part) { answer.Data(part); },
                            .on_done = [&answer](net::HttpResponse r) { answer.Done(r); }});
    SetReply(reply);
    answer.Wait();
    SetReply(nullptr);
    if (!answer.error().empty()) {
      messages_.erase(messages_.end() - 1);
      return FailedPrecondition(answer.error());
    }
    messages_.push_back({{"role", "assistant"}, {"content", answer.text()}});
    if (answer.finish_reason() == "length" && isatty(STDERR_FILENO) == 1) {
      fmt::print(stderr, "(cut at --max-tokens {})\n", *flags_.sampling.params.max_tokens);
    }
    return OkStatus();
  }

  // Returns whether there was an answer to stop. Any thread.
  bool StopAnswer() {
    std::shared_ptr<InProcessApi::Reply> reply;
    {
      MutexLock lock(mutex_);
      reply = std::exchange(reply_, nullptr);
    }
    if (reply == nullptr) return false;
    reply->Hangup();
    return true;
  }

 private:
  void SetReply(std::shared_ptr<InProcessApi::Reply> reply) {
    MutexLock lock(mutex_);
    reply_ = std::move(reply);
  }

  const ChatFlags& flags_;
  InProcessApi& api_;
  Json messages_;
  Mutex mutex_;
  std::shared_ptr<InProcessApi::Reply> reply_ MR_GUARDED_BY(mutex_);
};

enum class Input { kLine, kEnd, kTooLong };

Input ReadLine(bool prompt, std::string& line) {
  if (prompt) {
    fmt::print("> ");
    std::fflush(stdout);
  }
  line.clear();
  if (!std::getline(std::cin, line)) return Input::kEnd;
  if (line.size() > kLineBytesMax) return Input::kTooLong;
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return Input::kLine;
}

Status Talk(Conversation& conversation, bool terminal) {
  std::string line;
  Status first_error;
  for (;;) {
    const Input input = ReadLine(terminal, line);
    if (input == Input::kEnd || line == "/quit" || line == "/exit") break;
    Status status;
    if (input == Input::kTooLong) {
      status = InvalidArgument(fmt::format("a line may have at most {} bytes", kLineBytesMax));
    } else if (line == "/reset") {
      conversation.Reset();
    } else if (line == "/help") {
      fmt::print("/reset forgets the conversation, /quit leaves, Ctrl-C stops an answer\n");
    } else if (line.starts_with("/")) {
      status = InvalidArgument(
          fmt::format("unknown command {}; there are /reset, /help and /quit", Printable(line)));
    } else if (!line.empty()) {
      status = conversation.Ask(line);
    }
    if (status.ok()) continue;
    fmt::print(stderr, "{}\n", Printable(status.message(), 1024));
    if (first_error.ok()) first_error = status;
  }
  if (terminal) fmt::print("\n");
  // For scripts that pipe questions, the exit code tells that one of them failed.
  return terminal ? OkStatus() : first_error;
}

Status RunChat(const ChatFlags& flags) {
  StopSignals signals;
  signals.OnSignal([](int) { std::_Exit(130); });
  const SteadyClock clock;
  MR_ASSIGN_OR_RETURN(
      const auto model,
      LoadWithProgress(flags.engine, {.chat_template = flags.chat_template}, clock));
  if (model->chat_template == nullptr) {
    return FailedPrecondition(fmt::format(
        "{} has no chat template; use 'millrace generate', or give --chat-template FILE",
        Printable(model->path.name)));
  }
  if (!model->spec.generates) {
    return FailedPrecondition(fmt::format(
        "{} has no vocabulary projection, so it makes embeddings only: use 'millrace serve'",
        Printable(model->path.name)));
  }
  const bool terminal = isatty(STDIN_FILENO) == 1;
  if (terminal) {
    fmt::print("{}Type a message; /reset forgets, /quit leaves, Ctrl-C stops an answer.\n",
               Summary(*model));
  }
  InProcessApi api(*model, clock);
  Conversation conversation(flags, api);
  signals.OnSignal([&conversation](int) {
    if (conversation.StopAnswer()) return;
    std::fflush(stdout);
    std::_Exit(130);
  });
  const Status status = Talk(conversation, terminal);
  signals.OnSignal([](int) { std::_Exit(130); });
  return status;
}

}  // namespace

std::unique_ptr<Command> MakeChatCommand() {
  auto command = std::make_unique<Command>();
  command->name = "chat";
  command->summary = "Talk to a model in the terminal";
  command->log_level = "warning";
  command->description =
      "Loads a model in this process and answers what is typed, or what is piped in, one message "
      "per line. /reset forgets the conversation, /quit or Ctrl-D leaves; Ctrl-C stops an answer, "
      "and leaves when there is none.";
  command->examples = {
      {"millrace chat models/demo", "type, and read the answers"},
      {"echo 'Tell me about the sea.' | millrace chat models/demo --temperature 0 --max-tokens 60",
       "one question from a script"}};
  auto flags = std::make_shared<ChatFlags>();
  flags->engine.max_num_seqs = 1;
  AddEngineOptions(*command, &flags->engine);
  command->Add("Conversation", TextOption("system", "TEXT", &flags->system),
               "System message, given to the model before the first message");
  Option chat_template = TextOption("chat-template", "FILE", &flags->chat_template);
  chat_template.kind = ValueKind::kFile;
  command->Add("Conversation", std::move(chat_template),
               "A chat template (Jinja) instead of the model's own");
  AddContentFormatOption(*command, "Conversation", &flags->engine);
  command
      ->Add("Conversation", FlagOption("reasoning", &flags->reasoning),
            "Show the reasoning of an answer: dim on a terminal, otherwise between <think> lines")
      .negatable = true;
  AddSamplingOptions(*command, &flags->sampling);
  AddGeneralOptions(*command);
  command->validate = [flags] { return ValidateEngineFlags(flags->engine); };
  command->run = [flags] { return RunChat(*flags); };
  return command;
}

}  // namespace millrace::apps
