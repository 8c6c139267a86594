#include "cluster/control/transfers/departure.h"

#include <algorithm>
#include <limits>

#include "plan/spot/arrange.h"

namespace millrace::cluster {
namespace {

using plan::spot::LiveRequest;

constexpr double kNever_s = std::numeric_limits<double>::infinity();
// Times are taken to be so much longer than measured. Steps vary more than copies.
constexpr double kCaution = 1.1, kStepCaution = 1.5;
// Nobody stays longer than this for its end alone: a machine may go before its deadline.
constexpr double kStay_s = 15;
// Work that is saved weighs twice as much for a request that has waited for so long: what tokens
// cost is about equal, so the oldest requests move first.
constexpr double kAgeing_s = 60;

// How long the request runs until its last token, as expected and at most.
void SetFinish(const Requests& requests, const Requests::Request& request, double token_s,
               LiveRequest& live) {
  live.finish_s = live.latest_finish_s = kNever_s;
  if (token_s <= 0) return;  // not measured
  const int n = request.n();
  const auto expected = static_cast<double>(requests.EstimatedOutput(request) - request.delivered);
  const int64_t limit = requests.OutputLimit(request);
  // Which of several sequences has generated how much is not known here.
  const auto most = static_cast<double>(n == 1 ? limit - request.delivered : limit / n);
  const auto within = [](double seconds) { return seconds <= kStay_s ? seconds : kNever_s; };
  live.finish_s = within(expected / n * token_s * kStepCaution);
  live.latest_finish_s = within(most * token_s * kStepCaution);
}

// Of the pipelines that would compute again what is not copied.
double ReplayTokensPerS(const Pipelines& pipelines) {
  double all = 0;
  for (const auto& [id, pipeline] : pipelines.all()) {
    if (!pipeline.open || pipeline.retiring || pipeline.role == StageRole::kDecode) continue;
    all += pipeline.prefill.costs().prefill_tokens_per_s;
  }
  return all;
}

}  // namespace

bool StopsProcess(NoticeSource source) {
  return source == NoticeSource::kSignal || source == NoticeSource::kKubernetes ||
         source == NoticeSource::kSlurm;
}

std::optional<Departure> DepartureOf(const Pipeline& pipeline, const Membership& members,
                                     Time now) {
  std::optional<Departure> first;
  for (size_t hop = 0; hop < pipeline.workers.size(); ++hop) {
    for (WorkerId id : pipeline.workers[hop]) {
      const Membership::Worker* worker = members.Find(id);
      if (worker == nullptr || !worker->leaving() || !worker->notice->deadline) continue;
      const Duration left = *worker->notice->deadline - now;
      if (first && left >= first->left) continue;
      first = Departure{hop, left, !StopsProcess(worker->notice->origin.source)};
    }
  }
  return first;
}

Exits ExitsOf(const Pipeline& pipeline, const std::optional<Departure>& departure,
              const Pipelines& pipelines, const Requests& requests, const Transfers& transfers,
              Time now) {
  Exits exits;
  std::vector<sched::RequestInfo> decoding;
  int64_t copying_tokens = 0;
  for (RequestId id : pipeline.requests.Ids()) {
    const auto info = pipeline.scheduler->Inspect(id, now);
    const bool decodes = info && info->state == sched::RequestState::kRunning &&
                         !requests.all().at(id).prefilling && pipeline.role != StageRole::kPrefill;
    if (transfers.Migrates(id)) {
      copying_tokens += info ? info->computed_tokens : 0;
    } else if (departure && decodes) {
      decoding.push_back(*info);
    } else {
      exits.leave.push_back(id);
    }
  }
  if (decoding.empty()) return exits;

  const std::optional<double> measured = transfers.copied_tokens_per_s();
  // Before the first measurement everything is copied, and nobody stays on an expectation.
  const double copied_per_s = measured.value_or(std::numeric_limits<float>::max());
  const double replayed_per_s = ReplayTokensPerS(pipelines);
  std::vector<LiveRequest> live;
  for (const sched::RequestInfo& info : decoding) {
    // In tokens: in one pipeline all have the same bytes.
    const auto kv_tokens = static_cast<int64_t>(info.computed_tokens);
    LiveRequest one{.kv_bytes = kv_tokens,
                    .replay_s = static_cast<double>(kv_tokens) / replayed_per_s,
                    .waiting_s = info.age.seconds()};
    SetFinish(requests, requests.all().at(info.id), departure->may_finish ? pipeline.token_s : 0,
              one);
    if (!measured) one.finish_s = kNever_s;
    live.push_back(one);
  }
  const double usable_s = (departure->left - Departure::kLastMoment).seconds() / kCaution;
  const auto choice = plan::spot::ChooseRecovery(
      live, {.seconds = usable_s - static_cast<double>(copying_tokens) / copied_per_s,
             .bytes_per_s = copied_per_s,
             .ageing_per_s = 1 / kAgeing_s,
             .copies_while_running = true});
  for (size_t i : choice.copies) exits.move.push_back(decoding[i].id);
  return exits;
}

}  // namespace millrace::cluster
