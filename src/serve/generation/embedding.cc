#include "serve/generation/embedding.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/task_barrier.h"
#include "serve/request/ignored_fields.h"

namespace millrace::serve {

int64_t EmbeddingSpec::prompt_tokens() const {
  int64_t tokens = 0;
  for (const std::vector<TokenId>& prompt : prompts) tokens += std::ssize(prompt);
  return tokens;
}

void Embedding::Begin(std::shared_ptr<ModelContext> model_context, EmbeddingSpec spec,
                      std::shared_ptr<net::HttpReply> reply) {
  std::shared_ptr<Embedding> embedding(
      new Embedding(std::move(model_context), std::move(spec), std::move(reply)));
  embedding->reply_->OnDisconnect([weak = embedding->weak_from_this()] {
    if (auto alive = weak.lock()) alive->Cancel();
  });
  embedding->SubmitAll();
}

Embedding::Embedding(std::shared_ptr<ModelContext> model_context, EmbeddingSpec spec,
                     std::shared_ptr<net::HttpReply> reply)
    : model_context_(std::move(model_context)),
      spec_(std::move(spec)),
      reply_(std::move(reply)),
      vectors_(spec_.prompts.size()) {
  model_context_->registry.Enter();
}

Embedding::~Embedding() { model_context_->registry.Leave(); }

// The error of a submission is answered here.
void Embedding::SubmitAll() {
  Status refused;
  for (size_t i = 0; i < spec_.prompts.size() && refused.ok(); ++i) {
    refused = SubmitOne(i);
    MutexLock lock(mutex_);
    if (answered_) break;
  }
  bool cancelled = false;
  {
    MutexLock lock(mutex_);
    cancelled = answered_;
    answered_ = answered_ || !refused.ok();
    begun_ = true;
    ScheduleIfNeeded();
  }
  if (cancelled || !refused.ok()) AbortAll();
  if (!refused.ok()) spec_.refuse(FromStatus(refused, "input"));
}

Status Embedding::SubmitOne(size_t prompt) {
  cluster::GenerationRequest request;
  request.external_id = spec_.request_id;
  request.prompt = spec_.prompts[prompt];
  request.params.pooling = spec_.options.pooling;
  request.priority = spec_.options.priority;
  request.cache_salt = spec_.cache_salt;
  request.client = spec_.owner;
  MR_ASSIGN_OR_RETURN(const RequestId id, model_context_->model.engine->Submit(
                                              std::move(request), [self = shared_from_this(),
                                                                   prompt](RequestOutput&& output) {
                                                self->Deliver(prompt, std::move(output));
                                              }));
  model_context_->registry.Add({.id = id,
                                .response_id = spec_.id,
                                .external_id = spec_.request_id,
                                .route = spec_.route,
                                .prompt_index = static_cast<int>(prompt),
                                .prompt_tokens = static_cast<int>(spec_.prompts[prompt].size()),
                                .arrived = spec_.arrived,
                                .trace = spec_.trace});
  MutexLock lock(mutex_);
  submitted_.push_back(id);
  return OkStatus();
}

void Embedding::Cancel() {
  {
    MutexLock lock(mutex_);
    answered_ = true;
  }
  AbortAll();
}

void Embedding::AbortAll() {
  std::vector<RequestId> ids;
  {
    MutexLock lock(mutex_);
    ids = submitted_;
  }
  for (RequestId id : ids) model_context_->model.engine->Abort(id);
}

void Embedding::Deliver(size_t prompt, RequestOutput&& output) {
  const Time now = model_context_->clock.Now();
  MutexLock lock(mutex_);
  mailbox_.push_back({prompt, now, std::move(output)});
  ScheduleIfNeeded();
}

void Embedding::ScheduleIfNeeded() {
  if (!begun_ || scheduled_ || mailbox_.empty()) return;
  scheduled_ = true;
  model_context_->workers.Post([self = shared_from_this()] { self->Run(); });
}

void Embedding::Run() {
  std::vector<Mail> mails;
  {
    MutexLock lock(mutex_);
    mails.swap(mailbox_);
  }
  for (Mail& mail : mails) {
    if (RunTask("a request for vectors", [&] { Take(mail); })) continue;
    RunTask("the end of a request for vectors", [this] {
      if (!error_) error_ = FromStatus(Internal(Printable(spec_.request_id) + " was given up"));
    });
  }
  const bool due = error_ || arrived_ == vectors_.size();
  bool answers = false;
  {
    MutexLock lock(mutex_);
    answers = due && !std::exchange(answered_, answered_ || due);
  }
  if (answers) {
    RunTask("a request for vectors", [this] { Answer(); });
    NoteDelivered();
  }
  MutexLock lock(mutex_);
  scheduled_ = false;
  ScheduleIfNeeded();
}

void Embedding::NoteDelivered() {
  const Time now = model_context_->clock.Now();
  std::vector<RequestId> ids;
  {
    MutexLock lock(mutex_);
    ids = submitted_;
  }
  model_context_->registry.Delivered(ids, now);
}

void Embedding::Take(Mail& mail) {
  RequestOutput& output = mail.output;
  if (output.times) Observe(mail);
  if (output.yields()) {
    vectors_[mail.prompt] = std::move(output.pooled);
    ++arrived_;
    if (!std::ranges::count(fingerprints_, output.fingerprint)) {
      fingerprints_.push_back(output.fingerprint);
    }
  } else if (output.finish == FinishReason::kAbort && !error_) {
    error_ = Unready("The server is shutting down and could not finish this request.");
  } else if (output.finish == FinishReason::kError && !error_) {
    MR_LOG(warn, "request {} ({}) failed: {}", output.request.value(), Printable(spec_.request_id),
           output.error.ToString());
    error_ = FromStatus(output.error);
  }
}

void Embedding::Observe(const Mail& last) {
  FinishedRequest finished;
  finished.reason = FinishReasonName(last.output.finish.value_or(FinishReason::kError));
  finished.prompt_tokens = static_cast<int>(spec_.prompts[last.prompt].size());
  finished.cached_prompt_tokens = last.output.cached_prompt_tokens;
  finished.e2e = last.at - spec_.arrived;
  finished.times = last.output.times;
  model_context_->metrics.ObserveFinished(finished);
  model_context_->registry.End(last.output.request, std::string(finished.reason), 0,
                               last.output.times, last.output.account);
}

void Embedding::Answer() {
  if (error_) {
    AbortAll();
    return spec_.refuse(*error_);
  }
  net::HttpResponse response = JsonResponse(
      spec_.answer(std::move(vectors_), fmt::format("{}", fmt::join(fingerprints_, "+"))));
  if (!spec_.options.ignored.empty()) {
    response.headers.emplace_back(kIgnoredHeader, spec_.options.ignored);
  }
  reply_->Send(std::move(response));
}

}  // namespace millrace::serve
