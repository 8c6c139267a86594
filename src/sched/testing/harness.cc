#include "sched/testing/harness.h"

#include <algorithm>

#include "base/check.h"
#include "sched/step_log.h"

namespace millrace::sched {

Harness::Harness(const HarnessOptions& options)
    : options_(options), scheduler_(std::move(Scheduler::Create(options.scheduler)).value()) {
  for (int layer = 0; layer < options.layers; ++layer) {
    models_.emplace_back(
        ContextHashOptions{.block_size = options.scheduler.block_size,
                           .num_blocks = options.scheduler.num_blocks,
                           .num_host_blocks = options.scheduler.num_host_blocks,
                           .vocab_size = options.vocab_size,
                           .eos_token_ids = options.scheduler.eos_token_ids,
                           .layer = options.layers > 1 ? std::optional(layer) : std::nullopt});
  }
  if (options_.step_log) {
    scheduler_ =
        NewRecordingScheduler(std::move(scheduler_), options_.scheduler, options_.step_log);
  }
}

Result<RequestId> Harness::Add(std::vector<TokenId> prompt, const SamplingParams& params,
                               const std::function<void(NewRequest&)>& change) {
  NewRequest request;
  request.id = RequestId(next_id_++);
  request.prompt = std::make_shared<const std::vector<TokenId>>(std::move(prompt));
  request.params = std::make_shared<const SamplingParams>(params);
  request.seed = params.seed.value_or(0);
  if (change) change(request);
  const RequestId id = request.id;
  MR_RETURN_IF_ERROR(AddAsIs(std::move(request)));
  return id;
}

Status Harness::AddAsIs(NewRequest request) {
  const RequestId id = request.id;
  const int n = request.params->n;
  MR_RETURN_IF_ERROR(scheduler_->Add(std::move(request), now_));
  sequences_[id] = n;
  Audit();
  return OkStatus();
}

RequestId Harness::MustAdd(std::vector<TokenId> prompt, const SamplingParams& params,
                           const std::function<void(NewRequest&)>& change) {
  const auto id = Add(std::move(prompt), params, change);
  MR_CHECK(id.ok()) << id.status().ToString();
  return *id;
}

void Harness::Abort(RequestId id, std::optional<int> index) {
  scheduler_->Abort(id, index, now_, fresh_);
  Collect();
  Audit();
}

Status Harness::ExtendImport(RequestId id, std::vector<TokenId> more_output, int imported_tokens) {
  return ExtendImport(id, {{.output = std::move(more_output)}}, std::vector{imported_tokens});
}

Status Harness::ExtendImport(RequestId id, const std::vector<ResumedSequence>& more,
                             const std::vector<int>& imported_tokens) {
  const Status extended = scheduler_->ExtendImport(id, more, imported_tokens, pulls_);
  Audit();
  return extended;
}

const StepPlan* Harness::Schedule() {
  const NextStep step = scheduler_->Schedule(now_, pulls_);
  preemptions_.insert(preemptions_.end(), step.preemptions.begin(), step.preemptions.end());
  Audit();
  if (step) CheckWrites(*step.plan);
  return step.plan;
}

void Harness::CheckWrites(const StepPlan& plan) {
  Flight flight{plan, {}};
  for (SequenceId id : plan.released) tables_.erase(id);
  const int block_size = options_.scheduler.block_size;
  for (const SequenceStart& start : plan.started) prompts_[start.id] = start.prompt;
  int tokens = 0;
  for (const SequenceStep& step : plan.sequences) {
    tokens += step.num_tokens;
    std::vector<BlockIndex>& table = tables_[step.id];
    table.resize(step.keep_blocks);
    const auto fresh = plan.NewBlocksOf(step);
    table.insert(table.end(), fresh.begin(), fresh.end());
    for (const Flight& earlier : flights_) {
      MR_CHECK(std::ranges::count(earlier.plan.sequences, step.id, &SequenceStep::id) == 0)
          << "sequence " << step.id << " is in two steps in flight";
      for (int b = step.start / block_size; b * block_size < step.start + step.num_tokens; ++b) {
        const auto used = earlier.blocks.find(table[b]);
        MR_CHECK(used == earlier.blocks.end() || used->second == prompts_.at(step.id))
            << "step " << plan.id << " writes block " << table[b] << ", which step "
            << earlier.plan.id << " still uses";
      }
    }
  }
  MR_CHECK(tokens == std::ssize(plan.tokens) &&
           tokens <= options_.scheduler.max_num_batched_tokens);
  MR_CHECK(std::ssize(plan.sequences) <= options_.scheduler.max_num_seqs);
  for (const SequenceStep& step : plan.sequences) {
    for (BlockIndex block : tables_[step.id]) flight.blocks[block] = prompts_.at(step.id);
  }
  flights_.push_back(std::move(flight));
  MR_CHECK(in_flight() <= options_.scheduler.stages);
}

void Harness::Commit(const std::function<void(StepResult&)>& change) {
  MR_CHECK(!flights_.empty()) << "no step in flight";
  // The model runs as late as possible, so that a block that is reused too early is detected.
  StepResult result = Run(flights_.front().plan);
  flights_.pop_front();
  if (change) change(result);
  const Status taken = scheduler_->Commit(result, now_, fresh_, pulls_);
  MR_CHECK(taken.ok()) << taken.message();
  Collect();
  Audit();
}

StepResult Harness::Run(const StepPlan& plan) {
  StepResult result = models_.front().Run(plan);
  for (size_t layer = 1; layer < models_.size(); ++layer) {
    const StepResult other = models_[layer].Run(plan);
    for (size_t i = 0; i < result.sequences.size(); ++i) {
      MR_CHECK(result.sequences[i].token == other.sequences[i].token &&
               result.sequences[i].pooled == other.sequences[i].pooled)
          << "layer " << layer << " has other KV of sequence " << result.sequences[i].id
          << " in step " << plan.id;
    }
  }
  return result;
}

bool Harness::Turn() {
  bool moved = false;
  while (Schedule()) moved = true;
  if (!flights_.empty()) {
    Commit();
    moved = true;
  }
  return moved;
}

void Harness::RunToEnd(int turns_max) {
  for (int turn = 0; Turn(); ++turn) {
    MR_CHECK(turn < turns_max) << "still not finished after " << turns_max << " turns";
    now_ = now_ + Duration::Millis(1);
  }
  MR_CHECK(!scheduler_->HasWork()) << "work is left but no step can run";
}

void Harness::Collect() {
  for (RequestOutput& output : fresh_) {
    SequenceOutcome& outcome = outcomes_[{output.request, output.index}];
    MR_CHECK(!outcome.ended) << "output of request " << output.request << " after its end";
    outcome.tokens.insert(outcome.tokens.end(), output.tokens.begin(), output.tokens.end());
    outcome.logprobs.insert(outcome.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
    outcome.prompt_logprobs.insert(outcome.prompt_logprobs.end(), output.prompt_logprobs.begin(),
                                   output.prompt_logprobs.end());
    outcome.pooled = output.pooled;
    outcome.finish = output.finish;
    outcome.ended = output.finish || output.times;
    outcome.error = output.error;
    outcome.cached_prompt_tokens = output.cached_prompt_tokens;
    if (output.times) {
      MR_CHECK(output.account && output.account->begin() == output.times->arrived &&
               output.account->until() == now_)
          << "the account of request " << output.request << " is not of its whole time";
      output.account->CheckIntegrity();
    }
    outputs_.push_back(std::move(output));
  }
  fresh_.clear();
}

void Harness::Audit() {
  if (options_.audit) scheduler_->CheckIntegrity();
}

const SequenceOutcome& Harness::outcome(RequestId id, int index) const {
  static const SequenceOutcome nothing_yet;
  const auto found = outcomes_.find({id, index});
  return found == outcomes_.end() ? nothing_yet : found->second;
}

bool Harness::finished(RequestId id) const {
  const int n = sequences_.at(id);
  for (int i = 0; i < n; ++i) {
    if (!outcome(id, i).ended) return false;
  }
  return true;
}

}  // namespace millrace::sched
