#include "tests/fault/clients.h"

#include <fmt/format.h>

namespace millrace::sim::fault {
namespace {

// Whether the request may have failed because no worker of its class came back.
bool LacksClass(const Scenario& scenario, bool has_class, const Status& error) {
  return scenario.classes > 1 && !scenario.cross_class_replay && has_class &&
         error.message().find("--cross-class-replay") != std::string::npos;
}

}  // namespace

Clients::Clients(const Scenario& scenario, World& world) : scenario_(scenario), world_(world) {
  for (const TestRequest& q : scenario.test_requests) {
    Request& r = requests_.emplace_back();
    r.prompt = std::make_shared<const std::vector<TokenId>>(q.prompt);
    r.params = std::make_shared<const SamplingParams>(q.params);
    r.seed = q.seed;
    r.open = q.params.n;
    for (int i = 0; i < q.params.n; ++i) {
      r.sequences.emplace_back().expected =
          stage::HashReference(scenario.model, q.prompt, q.params, SequenceSeed(q.seed, i),
                               *q.params.max_tokens, scenario.eos_token_ids);
    }
  }
  open_ = requests_.size();
}

sched::NewRequest Clients::RequestOf(size_t test_request) const {
  const Request& r = requests_[test_request];
  sched::NewRequest request;
  request.id = IdOf(test_request);
  request.prompt = r.prompt;
  request.params = r.params;
  request.seed = r.seed;
  bool begun = false;
  for (const Sequence& s : r.sequences) begun |= s.delivered > 0 || s.finish;
  if (!begun) return request;
  for (const Sequence& s : r.sequences) {
    request.resumed.push_back(
        {{s.expected.begin(), s.expected.begin() + static_cast<std::ptrdiff_t>(s.delivered)},
         s.finish.has_value()});
  }
  return request;
}

std::string Clients::ComputedBy(size_t test_request) const {
  const std::optional<int> bit_class = requests_[test_request].bit_class;
  return bit_class ? scenario_.FingerprintOf(*bit_class) : "";
}

// From here on the tokens are those of the class, computed from the prompt and the tokens so far.
void Clients::ContinuesIn(Request& request, const std::string& fingerprint) {
  int bit_class = 0;
  while (bit_class < scenario_.classes && scenario_.FingerprintOf(bit_class) != fingerprint) {
    ++bit_class;
  }
  const bool changes = request.bit_class && request.bit_class != bit_class;
  if (bit_class == scenario_.classes || (changes && !scenario_.cross_class_replay)) {
    return world_.Broken(Invariant::kOneClass,
                         fmt::format("tokens of class {} after tokens of class {}", bit_class,
                                     request.bit_class.value_or(bit_class)));
  }
  request.bit_class = bit_class;
  for (size_t i = 0; i < request.sequences.size(); ++i) {
    Sequence& s = request.sequences[i];
    if (s.finish) continue;
    const std::vector<TokenId> begun(s.expected.begin(),
                                     s.expected.begin() + static_cast<std::ptrdiff_t>(s.delivered));
    s.expected =
        stage::HashReference(scenario_.ModelOf(bit_class), *request.prompt, *request.params,
                             SequenceSeed(request.seed, static_cast<int>(i)),
                             *request.params->max_tokens, scenario_.eos_token_ids, begun);
  }
}

void Clients::Refused(size_t test_request, const Status& status) {
  world_.Broken(Invariant::kNoNeedlessError,
                fmt::format("request {} was refused: {}", test_request + 1, status.ToString()));
}

void Clients::Take(const RequestOutput& output, Time now, uint64_t pipelines_lost) {
  const size_t test_request = output.request.value() - 1;
  if (test_request >= requests_.size() || output.index < 0 ||
      output.index >= std::ssize(requests_[test_request].sequences)) {
    return world_.Broken(Invariant::kEndsOnce, "output of an unknown request");
  }
  Request& r = requests_[test_request];
  Sequence& s = r.sequences[static_cast<size_t>(output.index)];
  if (s.finish) {
    return world_.Broken(Invariant::kEndsOnce, fmt::format("request {}.{}: output after its end",
                                                           test_request + 1, output.index));
  }
  if (!output.fingerprint.empty()) ContinuesIn(r, output.fingerprint);
  if (output.yields() && !r.bit_class) {
    return world_.Broken(Invariant::kOneClass, fmt::format("request {}.{}: tokens of no class",
                                                           test_request + 1, output.index));
  }
  for (TokenId token : output.tokens) {
    if (s.delivered >= s.expected.size() || s.expected[s.delivered] != token) {
      return world_.Broken(
          Invariant::kTokensInOrder,
          fmt::format("request {}.{}: token {} is {}, expected {}", test_request + 1, output.index,
                      s.delivered, token,
                      s.delivered < s.expected.size() ? std::to_string(s.expected[s.delivered])
                                                      : "the end"));
    }
    ++s.delivered;
    ++tokens_;
  }
  last_output_ = now;
  if (!output.finish) return;
  CheckEnd(r, s, output, pipelines_lost);
  s.finish = output.finish;
  if (--r.open == 0) --open_;
}

// Of a request for a vector: whether it has the right one. Others have none.
bool Clients::HasVector(const Request& request, const RequestOutput& output) const {
  if (!request.params->pools()) return output.pooled.empty();
  return request.bit_class &&
         output.pooled == stage::HashVector(scenario_.ModelOf(*request.bit_class), *request.prompt,
                                            request.params->pooling);
}

void Clients::CheckEnd(const Request& request, const Sequence& sequence,
                       const RequestOutput& output, uint64_t pipelines_lost) {
  switch (*output.finish) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      if (!HasVector(request, output)) {
        return world_.Broken(
            Invariant::kAnswerIsWhole,
            fmt::format("request {} ended with another vector", output.request.value()));
      }
      if (sequence.delivered == sequence.expected.size()) return;
      return world_.Broken(
          Invariant::kAnswerIsWhole,
          fmt::format("request {}.{} ended after {} of {} tokens", output.request.value(),
                      output.index, sequence.delivered, sequence.expected.size()));
    case FinishReason::kAbort:
      if (request.aborted) return;
      return world_.Broken(
          Invariant::kNoNeedlessError,
          fmt::format("request {} was aborted without a cause", output.request.value()));
    case FinishReason::kError:
      ++errors_;
      if (scenario_.autopilot && scenario_.faults.empty()) {
        return world_.Broken(Invariant::kDecisionsFailNoRequest,
                             fmt::format("request {} failed although nothing went wrong: {}",
                                         output.request.value(), output.error.ToString()));
      }
      if (pipelines_lost >= 2) return;
      if (LacksClass(scenario_, request.bit_class.has_value(), output.error)) return;
      return world_.Broken(
          Invariant::kNoNeedlessError,
          fmt::format("request {} failed after {} lost pipelines: {}", output.request.value(),
                      pipelines_lost, output.error.ToString()));
  }
}

std::string Clients::Describe(size_t test_request) const {
  const Request& r = requests_[test_request];
  std::string text = fmt::format("request {} ({})", test_request + 1,
                                 !r.accepted ? "never accepted"
                                 : r.aborted ? "aborted"
                                             : "open");
  for (const Sequence& s : r.sequences)
    text += fmt::format(" {}/{}", s.delivered, s.expected.size());
  return text;
}

}  // namespace millrace::sim::fault
