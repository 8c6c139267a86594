#include "sim/fast/trial_instance.h"

#include <algorithm>

namespace millrace::sim::trial {

using cost::BatchShape;

Instance::Instance(const TrialDeployment& deployment, const TrialInstance& kind, Duties duties,
                   std::vector<Request>& requests)
    : deployment_(deployment),
      kind_(kind),
      duties_(duties),
      requests_(requests),
      lanes_(kind.stages.size()),
      stage_free_s_(kind.stages.size(), 0.0) {}

void Instance::AddPrompt(int id) {
  Request& r = requests_[id];
  const BatchShape alone{.prefill_tokens = r.prompt,
                         .prefill_tokens_squared = int64_t{r.prompt} * r.prompt,
                         .prefill_sequences = 1};
  r.predicted_s = kind_.stages[0]->Seconds(alone);
  backlog_s_ += r.predicted_s;
  prompts_.push_back(id);
  ++requests_here_;
}

void Instance::AddDecode(int id, double) {
  // The lane with the fewest sequences: lanes take turns, so their steps should be equally long.
  Lane* best = &lanes_[0];
  for (Lane& lane : lanes_) {
    if (lane.decoding < best->decoding) best = &lane;
  }
  StartDecoding(*best, id);
}

void Instance::StartDecoding(Lane& lane, int id) {
  const Request& r = requests_[id];
  ++lane.decoding;
  lane.context += r.prompt + 1;
  // A lane in the middle of a decode step counts that step only for the sequences it had before.
  const int64_t from = lane.steps + (lane.busy && lane.decodes_now ? 1 : 0);
  if (lane.busy && lane.decodes_now) lane.context -= 1;
  lane.ends.emplace(from + r.output - 1, id);
}

bool Instance::AdmitFront(const Lane& lane) {
  const Request& r = requests_[prompts_.front()];
  const int sequences = lane.decoding + static_cast<int>(lane.prompts.size());
  if (sequences >= deployment_.sequences_max || !Fits(Footprint(r))) return false;
  Reserve(Footprint(r));
  backlog_s_ -= r.predicted_s;
  return true;
}

// Takes prompts together up to the limit; a longer prompt runs alone.
void Instance::TakePrompts(Lane& lane, BatchShape& shape) {
  while (!prompts_.empty()) {
    const int id = prompts_.front();
    Request& r = requests_[id];
    if (shape.prefill_tokens > 0 &&
        shape.prefill_tokens + r.prompt > deployment_.prefill_batch_tokens) {
      return;
    }
    if (!AdmitFront(lane)) return;
    prompts_.pop_front();
    r.prefilled = r.prompt;
    shape.prefill_tokens += r.prompt;
    shape.prefill_tokens_squared += int64_t{r.prompt} * r.prompt;
    ++shape.prefill_sequences;
    lane.prompts.push_back(id);
  }
}

void Instance::TakeChunk(Lane& lane, BatchShape& shape, int budget) {
  while (budget > 0) {
    if (!lane.partial) {
      if (prompts_.empty() || !AdmitFront(lane)) return;
      lane.partial = prompts_.front();
      prompts_.pop_front();
    }
    Request& r = requests_[*lane.partial];
    const int take = std::min(budget, r.prompt - r.prefilled);
    const int64_t begin = r.prefilled, end = begin + take;
    r.prefilled += take;
    budget -= take;
    shape.prefill_tokens += take;
    shape.prefill_tokens_squared += end * end - begin * begin;
    ++shape.prefill_sequences;
    if (r.prefilled < r.prompt) return;
    lane.prompts.push_back(*lane.partial);
    lane.partial.reset();
  }
}

BatchShape Instance::Compose(Lane& lane) {
  BatchShape shape;
  lane.decodes_now = false;
  if (duties_.prefill && !duties_.chunked) TakePrompts(lane, shape);
  if (duties_.decode && shape.empty() && lane.decoding > 0) {
    lane.decodes_now = true;
    shape.decode_sequences = lane.decoding;
    shape.decode_context = lane.context;
  }
  if (duties_.chunked) TakeChunk(lane, shape, deployment_.prefill_batch_tokens - lane.decoding);
  return shape;
}

std::optional<Step> Instance::TryStart(double now_s) {
  if (stage_free_s_[0] > now_s) return std::nullopt;
  for (size_t k = 0; k < lanes_.size(); ++k) {
    const size_t index = (next_lane_ + k) % lanes_.size();
    Lane& lane = lanes_[index];
    if (lane.busy) continue;
    const BatchShape shape = Compose(lane);
    if (shape.empty()) continue;
    lane.busy = true;
    next_lane_ = (index + 1) % lanes_.size();
    double at = now_s;
    for (size_t i = 0; i < stage_free_s_.size(); ++i) {
      at = std::max(at, stage_free_s_[i]) + kind_.stages[i]->Seconds(shape);
      stage_free_s_[i] = at;
    }
    return Step{.lane = static_cast<int>(index), .end_s = at, .next_start_s = stage_free_s_[0]};
  }
  return std::nullopt;
}

void Instance::Finish(int index, double now_s, std::vector<int>& prefilled,
                      std::vector<int>& ended) {
  Lane& lane = lanes_[index];
  lane.busy = false;
  if (lane.decodes_now) {
    ++lane.steps;
    lane.context += lane.decoding;
    lane.decodes_now = false;
    while (!lane.ends.empty() && lane.ends.top().first <= lane.steps) {
      const int id = lane.ends.top().second;
      lane.ends.pop();
      const Request& r = requests_[id];
      --lane.decoding;
      lane.context -= int64_t{r.prompt} + r.output;
      Free(Footprint(r));
      ended.push_back(id);
    }
  }
  for (const int id : lane.prompts) {
    Request& r = requests_[id];
    r.first_s = now_s;
    prefilled.push_back(id);
    if (!duties_.decode) continue;
    if (r.output > 1) {
      StartDecoding(lane, id);
    } else {
      Free(Footprint(r));
    }
  }
  lane.prompts.clear();
}

double Instance::PredictedWait(double now_s) const {
  double wait = std::max(0.0, stage_free_s_[0] - now_s) + backlog_s_;
  if (duties_.decode) wait += PredictedDecode(0);
  return wait;
}

double Instance::PredictedDecode(int64_t tokens) const {
  BatchShape shape{.decode_sequences = tokens > 0 ? 1 : 0, .decode_context = kv_used_ + tokens};
  shape.decode_context += handed_over_tokens_;
  for (const Lane& lane : lanes_) shape.decode_sequences += lane.decoding;
  shape.decode_sequences += static_cast<int32_t>(handed_over_.size());
  return kind_.stages[0]->Seconds(shape);
}

}  // namespace millrace::sim::trial
