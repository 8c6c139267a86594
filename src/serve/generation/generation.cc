#include "serve/generation/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/task_barrier.h"
#include "serve/generation/stream_pings.h"
#include "serve/generation/stream_record.h"

namespace millrace::serve {
namespace {

constexpr const char* kTask = "a request for text";  // for the log

}  // namespace

void Generation::Begin(std::shared_ptr<ModelContext> model_context, GenerationSpec spec,
                       std::shared_ptr<net::HttpReply> reply) {
  std::shared_ptr<Generation> generation(
      new Generation(std::move(model_context), std::move(spec), std::move(reply)));
  generation->AbortWhenDisconnected();
  generation->SubmitAll();
  if (generation->spec_.format.stream && generation->model_context_->pings != nullptr) {
    generation->model_context_->pings->Add(generation);
  }
}

void Generation::PingIfSilent(Time now, Duration silence) {
  MutexLock lock(mutex_);
  if (now - std::max(written_, spec_.arrived) < silence) return;
  written_ = now;
  ping_ = true;
  ScheduleIfNeeded();
}

bool Generation::Restore(std::shared_ptr<ModelContext> model_context, GenerationSpec spec,
                         std::shared_ptr<net::HttpReply> reply,
                         std::vector<cluster::RecoveredRequest> earlier,
                         cluster::RecoveredRequests& requests) {
  std::shared_ptr<Generation> generation(
      new Generation(std::move(model_context), std::move(spec), std::move(reply)));
  if (!generation->ReplayOutputs(earlier)) return false;
  if (!generation->answered_) generation->AbortWhenDisconnected();
  generation->ResumeAll(earlier, requests);
  return true;
}

void Generation::AbortWhenDisconnected() {
  reply_->OnDisconnect([weak = weak_from_this()] {
    if (auto alive = weak.lock()) alive->Cancel();
  });
}

// Runs before other threads can reach the generation. Returns false if the generation had failed,
// or if the record is inconsistent.
bool Generation::ReplayOutputs(const std::vector<cluster::RecoveredRequest>& earlier) {
  struct Delivered {
    uint64_t order;
    int prompt;
    const RequestOutput* output;
  };
  std::vector<Delivered> delivered;
  for (size_t i = 0; i < earlier.size(); ++i) {
    if (earlier[i].delivered_order.size() != earlier[i].delivered.size()) return false;
    for (size_t k = 0; k < earlier[i].delivered.size(); ++k) {
      delivered.push_back(
          {earlier[i].delivered_order[k], static_cast<int>(i), &earlier[i].delivered[k]});
    }
  }
  std::ranges::stable_sort(delivered, {}, &Delivered::order);
  answer_.Start();
  for (const Delivered& one : delivered) {
    if (!ReplayOutputs(one.prompt, *one.output)) return false;
  }
  answered_ = finished_choices_ == choices_.size();
  if (answered_) {
    Finish();
  } else {
    answer_.Flush(choices_, Usage());
  }
  return true;
}

bool Generation::ReplayOutputs(int prompt, const RequestOutput& output) {
  const SamplingParams& params = spec_.options.params;
  if (output.index < 0 || output.index >= params.n) return false;
  if (params.logprobs && output.logprobs.size() != output.tokens.size()) return false;
  PromptState& state = prompts_[static_cast<size_t>(prompt)];
  state.cached_tokens = std::max(state.cached_tokens, output.cached_prompt_tokens);
  state.first_token_seen = true;
  TakeFingerprint(prompt, output);
  TakePromptReports(prompt, output);
  const bool reported = spec_.prompts[static_cast<size_t>(prompt)].tokens.size() > 1;
  if (params.prompt_logprobs && reported && !state.reports) return false;
  Choice& choice = choices_[static_cast<size_t>(prompt * params.n + output.index)];
  if (choice.finished()) return true;
  ApplyOutput(choice, output);
  if (!choice.finished()) return true;
  ++finished_choices_;
  return choice.finish_reason() != "abort" && choice.finish_reason() != "error";
}

// Whether all sequences of a prompt have ended.
bool Generation::AllEnded(int prompt) const {
  const auto n = static_cast<std::ptrdiff_t>(spec_.options.params.n);
  const auto first = choices_.begin() + prompt * n;
  return std::all_of(first, first + n, [](const Choice& choice) { return choice.finished(); });
}

void Generation::ResumeAll(const std::vector<cluster::RecoveredRequest>& earlier,
                           cluster::RecoveredRequests& requests) {
  Status resumed;
  for (size_t i = 0; i < earlier.size(); ++i) {
    if (earlier[i].finished) continue;
    // An unfinished request whose sequences have all ended was stopped by stop strings, and the
    // journal lacks its abort.
    if (!resumed.ok() || AllEnded(static_cast<int>(i))) {
      requests.Drop(earlier[i].id);
    } else {
      resumed = ResumePrompt(static_cast<int>(i), earlier[i], requests);
    }
  }
  if (!resumed.ok()) Fail(FromStatus(resumed));
  bool cancelled = false;
  {
    MutexLock lock(mutex_);
    cancelled = cancelled_;
    begun_ = true;
    ScheduleIfNeeded();
  }
  if (cancelled) AbortAll();
}

Status Generation::ResumePrompt(int prompt, const cluster::RecoveredRequest& earlier,
                                cluster::RecoveredRequests& requests) {
  MR_RETURN_IF_ERROR(
      requests.Resume(earlier.id, [self = shared_from_this(), prompt](RequestOutput&& output) {
        self->Deliver(prompt, std::move(output));
      }));
  Submitted(earlier.id, prompt);
  // The journal may lack the aborts of sequences that a stop string ended.
  const int n = spec_.options.params.n;
  for (int i = 0; i < n; ++i) {
    if (choices_[static_cast<size_t>(prompt * n + i)].finished()) {
      model_context_->model.engine->Abort(earlier.id, i);
    }
  }
  return OkStatus();
}

Generation::Generation(std::shared_ptr<ModelContext> model_context, GenerationSpec spec,
                       std::shared_ptr<net::HttpReply> reply)
    : model_context_(std::move(model_context)),
      spec_(std::move(spec)),
      reply_(std::move(reply)),
      answer_(spec_.format, spec_.head, reply_, spec_.writer),
      prompts_(spec_.prompts.size()) {
  const SamplingParams& params = spec_.options.params;
  const ServedModel& model = model_context_->model;
  const text::CallIds call_ids = text::CallIdsOf(
      model.chat_template ? model.chat_template->tool_source() : "", model.tool_format);
  choices_.reserve(spec_.prompts.size() * static_cast<size_t>(params.n));
  for (const PromptInput& prompt : spec_.prompts) {
    for (int i = 0; i < params.n; ++i) {
      choices_.emplace_back(model.tokenizer, params, prompt.tokens,
                            Choice::Setup{.index = static_cast<int>(choices_.size()),
                                          .echo = prompt.echo,
                                          .echo_reports = spec_.echo && params.logprobs,
                                          .hide_generated = spec_.echo_only,
                                          .hide_logprobs = spec_.options.hides_logprobs,
                                          .max_tokens = prompt.max_tokens,
                                          .split = spec_.split,
                                          .token_ids = spec_.options.token_ids,
                                          .tokens_as_ids = spec_.options.tokens_as_ids,
                                          .keeps_tokens = !spec_.body.empty(),
                                          .response_id = spec_.head.id,
                                          .call_ids = call_ids});
    }
  }
  model_context_->registry.Enter();
}

Generation::~Generation() { model_context_->registry.Leave(); }

void Generation::SubmitAll() {
  std::optional<ApiError> error = RefuseEarly();
  for (size_t i = 0; i < spec_.prompts.size() && !error; ++i) {
    error = SubmitOne(static_cast<int>(i));
    MutexLock lock(mutex_);
    if (cancelled_) break;
  }
  // From here on the client may reconnect; the head tells it the name of the stream.
  if (!error && spec_.resumable) answer_.Start();
  bool cancelled = false;
  {
    MutexLock lock(mutex_);
    cancelled = cancelled_;
    answered_ = cancelled_ || error.has_value();
    begun_ = true;
    ScheduleIfNeeded();
  }
  if (cancelled || error) AbortAll();
  if (!error) return;
  if (error->status == 429) {
    for (size_t i = 0; i < spec_.prompts.size(); ++i) model_context_->metrics.ObserveRefused();
  }
  answer_.Fail(*error);
}

std::optional<ApiError> Generation::RefuseEarly() const {
  if (!model_context_->refuse_beyond) return std::nullopt;
  int64_t tokens = 0;
  for (const PromptInput& prompt : spec_.prompts) tokens += std::ssize(prompt.tokens);
  const auto predicted = model_context_->model.engine->PredictedTtft(static_cast<int>(tokens));
  if (!predicted) return std::nullopt;
  return EarlyRefusal(model_context_->limits, *model_context_->refuse_beyond, *predicted);
}

// With `sequence` the request is for that one alone, with the seed that it has among the others. A
// journal does not resume it.
Result<RequestId> Generation::Submit(int prompt, std::optional<int> sequence) {
  const PromptInput& input = spec_.prompts[static_cast<size_t>(prompt)];
  PromptState& state = prompts_[static_cast<size_t>(prompt)];
  cluster::GenerationRequest request;
  request.external_id = spec_.request_id;
  request.prompt = input.tokens;
  request.params = spec_.options.params;
  request.params.max_tokens = input.max_tokens;
  request.priority = spec_.options.priority;
  request.cache_salt = spec_.cache_salt;
  request.client = spec_.owner;
  request.prompt_cache_key = spec_.options.prompt_cache_key;
  if (!sequence) {
    request.front_end = EncodeStreamRecord(spec_, prompt);
  } else {
    request.params.n = 1;
    if (*sequence > 0) request.params.seed = SequenceSeed(state.seed, *sequence);
  }
  {
    MutexLock lock(mutex_);
    if (!submitted_.empty()) request.joins = submitted_.front();
  }
  Result<RequestId> id = model_context_->model.engine->Submit(
      std::move(request), [self = shared_from_this(), prompt, sequence](RequestOutput&& output) {
        if (sequence) output.index = *sequence;
        self->Deliver(prompt, std::move(output));
      });
  if (!id.ok()) return id;
  if (sequence.value_or(0) == 0) {
    state.seed = spec_.options.params.seed.value_or(model_context_->model.engine->DrawnSeed(*id));
  }
  Submitted(*id, prompt);
  return id;
}

std::optional<ApiError> Generation::SubmitOne(int prompt) {
  const SamplingParams& params = spec_.options.params;
  const Result<RequestId> id = Submit(prompt, {});
  if (id.ok()) return std::nullopt;
  const bool too_large = id.status().code() == StatusCode::kInvalidArgument;
  if (too_large && params.n > 1 && !params.beam_search) return SubmitInParts(prompt);
  return FromStatus(id.status(), spec_.format.chat ? "messages" : "prompt");
}

// Sequences that do not fit together are requests of their own, which wait for each other where
// they must.
std::optional<ApiError> Generation::SubmitInParts(int prompt) {
  const int n = spec_.options.params.n;
  prompts_[static_cast<size_t>(prompt)].parts = n;
  for (int i = 0; i < n; ++i) {
    const Result<RequestId> id = Submit(prompt, i);
    if (!id.ok()) return FromStatus(id.status(), spec_.format.chat ? "messages" : "prompt");
  }
  return std::nullopt;
}

void Generation::Submitted(RequestId id, int prompt) {
  const PromptInput& input = spec_.prompts[static_cast<size_t>(prompt)];
  const int parts = prompts_[static_cast<size_t>(prompt)].parts;
  model_context_->registry.Add({.id = id,
                                .response_id = spec_.head.id,
                                .external_id = spec_.request_id,
                                .route = spec_.route,
                                .prompt_index = prompt,
                                .prompt_tokens = static_cast<int>(input.tokens.size()),
                                .n = spec_.options.params.n / parts,
                                .stream = spec_.format.stream,
                                .arrived = spec_.arrived,
                                .asked = {.max_tokens = input.max_tokens,
                                          .temperature = spec_.options.params.temperature,
                                          .top_p = spec_.options.params.top_p},
                                .trace = spec_.trace});
  MutexLock lock(mutex_);
  submitted_.push_back(id);
}

void Generation::Cancel() {
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
  }
  AbortAll();
}

void Generation::AbortAll() {
  std::vector<RequestId> ids;
  {
    MutexLock lock(mutex_);
    ids = submitted_;
  }
  for (RequestId id : ids) model_context_->model.engine->Abort(id);
}

void Generation::Deliver(int prompt, RequestOutput&& output) {
  const Time now = model_context_->clock.Now();
  MutexLock lock(mutex_);
  if (mailbox_.size() >= kMailboxOutputsMax) overflowed_ = true;
  // The last output of a request is always accepted: it ends the prompt's accounting.
  if (!overflowed_ || output.times) mailbox_.push_back({prompt, now, std::move(output)});
  ScheduleIfNeeded();
}

void Generation::ScheduleIfNeeded() {
  if (!begun_ || scheduled_ || (mailbox_.empty() && !ping_)) return;
  scheduled_ = true;
  model_context_->workers.Post([self = shared_from_this()] { self->Run(); });
}

void Generation::Run() {
  std::vector<Mail> output;
  bool overflowed = false, ping = false;
  {
    MutexLock lock(mutex_);
    output.swap(mailbox_);
    ping = std::exchange(ping_, false) && output.empty();
    if (!output.empty()) written_ = model_context_->clock.Now();
    overflowed = overflowed_;
    answered_ = answered_ || cancelled_;
  }
  if (overflowed && !answered_) Fail(Unready("The server could not keep up with this request."));
  // A part of the work that throws, because there is no memory for example, fails this request and
  // no other.
  const auto guarded = [this](const auto& part) {
    if (RunTask(kTask, part)) return true;
    const bool told = RunTask(kTask, [this] {
      Fail(FromStatus(Internal(fmt::format("{} was given up", Printable(spec_.request_id)))));
    });
    answered_ = true;
    if (!told) RunTask(kTask, [this] { Cancel(); });
    return false;
  };
  for (Mail& mail : output) {
    if (guarded([&] { Process(mail); }) || !mail.output.times) continue;
    RunTask(kTask, [&] {
      model_context_->registry.End(mail.output.request, "error", 0, mail.output.times,
                                   mail.output.account);
    });
  }
  guarded([&] {
    if (answered_) return;
    if (Complete()) {
      answered_ = true;
      Finish();
    } else if (!(ping ? answer_.Ping() : answer_.Flush(choices_, Usage()))) {
      answered_ = true;
      Cancel();
    }
  });
  if (answered_ && !std::exchange(delivered_, true)) NoteDelivered();
  MutexLock lock(mutex_);
  scheduled_ = false;
  ScheduleIfNeeded();
}

void Generation::NoteDelivered() {
  const Time now = model_context_->clock.Now();
  std::vector<RequestId> ids;
  {
    MutexLock lock(mutex_);
    ids = submitted_;
  }
  model_context_->registry.Delivered(ids, now);
}

// Whether the answer can be finished. What a request's time went into is known when the controller
// has ended it, which may be after a stop string.
bool Generation::Complete() const {
  return finished_choices_ == choices_.size() &&
         (!spec_.format.metrics || std::ranges::all_of(prompts_, &PromptState::ended));
}

void Generation::Process(Mail& mail) {
  const int n = spec_.options.params.n;
  const RequestOutput& output = mail.output;
  PromptState& state = prompts_[static_cast<size_t>(mail.prompt)];
  Choice& choice = choices_[static_cast<size_t>(mail.prompt * n + output.index)];
  state.cached_tokens = std::max(state.cached_tokens, output.cached_prompt_tokens);
  TakeFingerprint(mail.prompt, output);
  TakePromptReports(mail.prompt, output);
  if (!choice.finished()) {
    if (!output.tokens.empty()) ObserveLatency(mail, state, choice);
    if (ApplyOutput(choice, output)) {
      model_context_->model.engine->Abort(output.request, state.parts > 1 ? 0 : output.index);
    }
    if (choice.finished()) ++finished_choices_;
  }
  if (output.times) EndRequest(mail);
  if (answered_) return;
  if (choice.finish_reason() == "error") {
    MR_LOG(warn, "request {} ({}) failed: {}", output.request.value(), Printable(spec_.request_id),
           output.error.ToString());
    Fail(FromStatus(output.error));
  } else if (choice.finish_reason() == "abort") {
    Fail(Unready("The server is shutting down and could not finish this request."));
  }
}

// A chunk has tokens of one class, so what came before is collected first.
void Generation::TakeFingerprint(int prompt, const RequestOutput& output) {
  if (output.fingerprint.empty()) return;
  if (!answered_) answer_.Collect(choices_, Usage());
  answer_.AddFingerprint(output.fingerprint);
  for (int i = 0; i < spec_.options.params.n; ++i) {
    choices_[static_cast<size_t>(prompt * spec_.options.params.n + i)].SetFingerprint(
        output.fingerprint);
  }
}

void Generation::TakePromptReports(int prompt, const RequestOutput& output) {
  const SamplingParams& params = spec_.options.params;
  PromptState& state = prompts_[static_cast<size_t>(prompt)];
  // A prompt of one token has none, and its report says so.
  const bool single = spec_.prompts[static_cast<size_t>(prompt)].tokens.size() == 1 &&
                      params.prompt_logprobs && !output.tokens.empty();
  if ((output.prompt_logprobs.empty() && !single) || state.reports) return;
  state.reports = PromptReports(*model_context_->model.tokenizer,
                                spec_.prompts[static_cast<size_t>(prompt)].tokens,
                                output.prompt_logprobs, params.skip_special_tokens);
  for (int i = 0; i < params.n; ++i) {
    choices_[static_cast<size_t>(prompt * params.n + i)].SetPromptReports(state.reports);
  }
}

// In a stream that is kept each token becomes an event of its own, so that the numbers of the
// events do not depend on which tokens were ready together. Returns the same as Choice::Apply.
bool Generation::ApplyOutput(Choice& choice, const RequestOutput& output) {
  if (!spec_.event_per_token) return choice.Apply(output);
  const size_t pieces = std::max<size_t>(output.tokens.size(), 1);
  bool stopped = false;
  for (size_t i = 0; i < pieces && !choice.finished(); ++i) {
    const bool last = i + 1 == pieces;
    RequestOutput piece;
    piece.request = output.request;
    piece.index = output.index;
    if (i < output.tokens.size()) piece.tokens.push_back(output.tokens[i]);
    if (i < output.logprobs.size()) piece.logprobs.push_back(output.logprobs[i]);
    if (last) {
      piece.finish = output.finish;
      piece.stop_token = output.stop_token;
    }
    stopped = choice.Apply(piece) && !output.finish;
    const std::string& reason = choice.finish_reason();
    if (!answered_ && reason != "abort" && reason != "error") answer_.Collect(choices_, Usage());
  }
  return stopped;
}

}  // namespace millrace::serve
