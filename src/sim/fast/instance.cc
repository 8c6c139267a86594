#include "sim/fast/instance.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::sim {

cost::BatchShape ShapeOf(const StepPlan& plan) {
  cost::BatchShape shape;
  for (const SequenceStep& s : plan.sequences) {
    if (s.num_tokens == 1) {
      ++shape.decode_sequences;
      shape.decode_context += s.start + 1;
      continue;
    }
    const int64_t end = s.start + s.num_tokens;
    ++shape.prefill_sequences;
    shape.prefill_tokens += s.num_tokens;
    shape.prefill_tokens_squared += end * end - int64_t{s.start} * s.start;
  }
  return shape;
}

namespace {

void Answer(SequenceId id, bool samples, SequenceResult& result) {
  result.id = id;
  if (samples) {
    result.token = 0;
  } else {
    result.token.reset();
  }
}

Result<std::unique_ptr<sched::Scheduler>> NewScheduler(const InstanceOptions& options) {
  sched::SchedulerOptions scheduler_options = options.scheduler;
  scheduler_options.stages = static_cast<int>(options.stages.size());
  scheduler_options.even_steps =
      true;  // as the controller's pipelines; one stage has no use for it
  return sched::Scheduler::Create(scheduler_options);
}

}  // namespace

void StepAnswer::Take(const StepPlan& plan) {
  id = plan.id;
  entries.clear();
  for (const SequenceStep& s : plan.sequences) {
    entries.push_back({s.id, s.logits != LogitsWanted::kNone});
  }
}

void StepAnswer::WriteTo(StepResult& result) const {
  result.id = id;
  result.sequences.resize(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    Answer(entries[i].sequence, entries[i].samples, result.sequences[i]);
  }
}

void AnswerTo(const StepPlan& plan, StepResult& result) {
  result.id = plan.id;
  result.sequences.resize(plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequenceStep& s = plan.sequences[i];
    Answer(s.id, s.logits != LogitsWanted::kNone, result.sequences[i]);
  }
}

Result<std::unique_ptr<Instance>> Instance::Create(const InstanceOptions& options) {
  MR_CHECK(!options.stages.empty()) << "an instance without a stage";
  MR_ASSIGN_OR_RETURN(auto scheduler, NewScheduler(options));
  return std::unique_ptr<Instance>(new Instance(options, std::move(scheduler)));
}

Instance::Instance(const InstanceOptions& options, std::unique_ptr<sched::Scheduler> scheduler)
    : options_(options), scheduler_(std::move(scheduler)) {
  use_.kv_blocks = options.scheduler.num_blocks;
  if (options.tpot_limit) {
    budget_.emplace(*options.tpot_limit, options.scheduler.max_num_batched_tokens);
  }
  for (const cost::StepCost* cost : options.stages) stages_.push_back({cost, Time{}, Duration{}});
}

void Instance::Submit(Time now, std::vector<Time>& ends) {
  while (const StepPlan* plan = scheduler_->Schedule(now, pulls_).plan) {
    InFlight step;
    if (!spare_.empty()) {
      step.answer = std::move(spare_.back());
      spare_.pop_back();
    }
    step.answer.Take(*plan);
    if (budget_) timer_.Submitted(*plan, now);
    step.end = RunThroughStages(*plan, now);
    ends.push_back(step.end);
    in_flight_.push_back(std::move(step));
    ++use_.steps;
    use_.sequences += plan->sequences.size();
    use_.full_of_sequences +=
        plan->sequences.size() >= static_cast<size_t>(options_.scheduler.max_num_seqs);
    use_.full_of_tokens +=
        plan->tokens.size() >= static_cast<size_t>(options_.scheduler.max_num_batched_tokens);
    CountKv(now);
  }
}

void Instance::CountKv(Time now) {
  use_.kv_block_seconds += kv_blocks_now_ * (now - kv_counted_).seconds();
  kv_counted_ = now;
  kv_blocks_now_ = scheduler_->blocks_in_use();
  use_.kv_blocks_peak = std::max(use_.kv_blocks_peak, kv_blocks_now_);
}

Duration Instance::TimeOf(size_t stage, const cost::BatchShape& shape, Time begin) const {
  const double typical_s = stages_[stage].cost->Seconds(shape);
  if (options_.pace == nullptr) return Duration::Seconds(typical_s);
  const double share = static_cast<double>(stage) / static_cast<double>(stages_.size());
  const double from_s = options_.pace_from_s + share * options_.pace->length_s();
  return Duration::Seconds(
      options_.pace->Seconds(typical_s, shape.tokens(), from_s + begin.ns * 1e-9));
}

Time Instance::RunThroughStages(const StepPlan& plan, Time now) {
  const cost::BatchShape shape = ShapeOf(plan);
  use_.prefill_tokens += static_cast<uint64_t>(shape.prefill_tokens);
  const auto sequences = static_cast<double>(plan.sequences.size());
  const auto swapped = static_cast<double>(plan.swap_out.size() + plan.swap_in.size());
  Time at = now + Duration::Seconds(std::exchange(owed_s_, 0) + options_.scheduler_overhead_s +
                                    options_.scheduler_overhead_per_seq_s * sequences +
                                    options_.swap_s_per_block * swapped);
  const Duration hop = Duration::Seconds(options_.hop_s + options_.hop_s_per_token *
                                                              static_cast<double>(shape.tokens()));
  if (on_step) {
    record_.id = plan.id;
    record_.batch = shape;
    record_.begin.clear();
    record_.end.clear();
  }
  for (size_t i = 0; i < stages_.size(); ++i) {
    Stage& stage = stages_[i];
    const Time begin = std::max(i == 0 ? at : at + hop, stage.free);
    const Duration took = TimeOf(i, shape, begin);
    at = stage.free = begin + took;
    stage.busy = stage.busy + took;
    if (on_step) {
      record_.begin.push_back(begin);
      record_.end.push_back(at);
    }
  }
  if (on_step) on_step(record_);
  return at;
}

void Instance::Finish(Time now, StepResult& result, std::vector<RequestOutput>& outputs) {
  MR_CHECK(!in_flight_.empty() && in_flight_.front().end == now) << now.ns;
  InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  step.answer.WriteTo(result);
  const auto timed = budget_ ? timer_.Done(result.id, now) : std::nullopt;
  if (timed && budget_->Ended(*timed)) {
    scheduler_->LimitSteps({.tokens_beside_decodes = budget_->tokens()});
  }
  const Status taken = scheduler_->Commit(result, now, outputs, pulls_);
  MR_CHECK(taken.ok()) << taken.message();
  CountKv(now);
  spare_.push_back(std::move(step.answer));
}

}  // namespace millrace::sim
