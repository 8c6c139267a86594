#include "sim/fault/clients.h"

#include <fmt/format.h>

namespace millrace::sim::fault {

Clients::Clients(const Scenario& scenario, Surroundings& world) : world_(world) {
  for (const Question& q : scenario.questions) {
    Request& r = requests_.emplace_back();
    r.prompt = std::make_shared<const std::vector<TokenId>>(q.prompt);
    r.params = std::make_shared<const SamplingParams>(q.params);
    r.seed = q.seed;
    r.open = q.params.n;
    for (int i = 0; i < q.params.n; ++i) {
      r.sequences.emplace_back().expected =
          engine::HashReference(scenario.model, q.prompt, q.params, SequenceSeed(q.seed, i),
                                *q.params.max_tokens, scenario.eos_token_ids);
    }
  }
  open_ = requests_.size();
}

sched::NewRequest Clients::RequestOf(size_t question) const {
  const Request& r = requests_[question];
  sched::NewRequest request;
  request.id = IdOf(question);
  request.prompt = r.prompt;
  request.params = r.params;
  request.seed = r.seed;
  bool begun = false;
  for (const Sequence& s : r.sequences) begun |= s.told > 0 || s.finish;
  if (!begun) return request;
  for (const Sequence& s : r.sequences) {
    request.resumed.push_back(
        {{s.expected.begin(), s.expected.begin() + static_cast<std::ptrdiff_t>(s.told)},
         s.finish.has_value()});
  }
  return request;
}

void Clients::Refused(size_t question, const Status& status) {
  world_.Broken(Invariant::kNoNeedlessError,
                fmt::format("request {} was refused: {}", question + 1, status.ToString()));
}

void Clients::Take(const RequestOutput& news, Time now, uint64_t lanes_lost) {
  const size_t question = news.request.value() - 1;
  if (question >= requests_.size() || news.index < 0 ||
      news.index >= std::ssize(requests_[question].sequences)) {
    return world_.Broken(Invariant::kEndsOnce, "news of a request that nobody made");
  }
  Request& r = requests_[question];
  Sequence& s = r.sequences[static_cast<size_t>(news.index)];
  if (s.finish) {
    return world_.Broken(Invariant::kEndsOnce, fmt::format("request {}.{}: news after its end",
                                                           question + 1, news.index));
  }
  for (TokenId token : news.tokens) {
    if (s.told >= s.expected.size() || s.expected[s.told] != token) {
      return world_.Broken(
          Invariant::kTokensInOrder,
          fmt::format("request {}.{}: token {} is {}, expected {}", question + 1, news.index,
                      s.told, token,
                      s.told < s.expected.size() ? std::to_string(s.expected[s.told]) : "the end"));
    }
    ++s.told;
    ++tokens_;
  }
  last_news_ = now;
  if (!news.finish) return;
  CheckEnd(r, s, news, lanes_lost);
  s.finish = news.finish;
  if (--r.open == 0) --open_;
}

void Clients::CheckEnd(const Request& request, const Sequence& sequence, const RequestOutput& news,
                       uint64_t lanes_lost) {
  switch (*news.finish) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      if (sequence.told == sequence.expected.size()) return;
      return world_.Broken(
          Invariant::kAnswerIsWhole,
          fmt::format("request {}.{} ended after {} of {} tokens", news.request.value(), news.index,
                      sequence.told, sequence.expected.size()));
    case FinishReason::kAbort:
      if (request.aborted) return;
      return world_.Broken(Invariant::kNoNeedlessError,
                           fmt::format("request {} was aborted by nobody", news.request.value()));
    case FinishReason::kError:
      ++errors_;
      if (lanes_lost >= 2) return;
      return world_.Broken(Invariant::kNoNeedlessError,
                           fmt::format("request {} failed after {} lost lanes: {}",
                                       news.request.value(), lanes_lost, news.error.ToString()));
  }
}

std::string Clients::Describe(size_t question) const {
  const Request& r = requests_[question];
  std::string text = fmt::format("request {} ({})", question + 1,
                                 !r.accepted ? "never accepted"
                                 : r.aborted ? "aborted"
                                             : "open");
  for (const Sequence& s : r.sequences) text += fmt::format(" {}/{}", s.told, s.expected.size());
  return text;
}

}  // namespace millrace::sim::fault
