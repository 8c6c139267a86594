#include "experiments/lib/helix/helix_simulator.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace millrace::experiments::helix {
namespace {

// Between card and device, once per entry to a node: joining the pieces and copying them.
constexpr double kConcatBytesPerS = 4e9, kCopyBytesPerS = 5e9;

}  // namespace

void HelixReport::Add(const HelixReport& other) {
  window_s = std::max(window_s, other.window_s);
  prompt_tokens += other.prompt_tokens;
  decode_tokens += other.decode_tokens;
  prompt_s.Merge(other.prompt_s);
  decode_s.Merge(other.decode_s);
  residence_s.Merge(other.residence_s);
  rejected += other.rejected;
  kv_overflows += other.kv_overflows;
  events += other.events;
}

HelixSimulator::HelixSimulator(const HelixModel& model, const HelixCluster& cluster,
                               HelixScheduler& scheduler, HelixFeeder& feeder)
    : state_(model, cluster), scheduler_(scheduler), feeder_(feeder) {
  for (const HelixNode& spec : cluster.nodes) {
    Node node;
    node.gpu = &model.gpus.at(spec.gpu);
    const HelixLimits& limits = node.gpu->LimitsOf(spec.layers.size());
    node.queues.resize(static_cast<size_t>(spec.layers.size()));
    node.kv_free = spec.kv_entries;
    node.prompt_requests_max = limits.prompt_max_requests;
    node.decode_tokens_max = limits.decode_max_tokens;
    nodes_.push_back(std::move(node));
  }
}

HelixReport HelixSimulator::Run(double warm_up_s, double window_s, double begin_s) {
  state_.now_s = begin_s;
  window_begin_s_ = begin_s + warm_up_s;
  window_end_s_ = window_begin_s_ + window_s;
  report_.window_s = window_s;
  feeder_.Start(*this);
  while (!events_.empty() && events_.next_time() < window_end_s_) {
    state_.now_s = events_.next_time();
    Handle(events_.Pop());
    ++report_.events;
  }
  return report_;
}

void HelixSimulator::Submit(double at_s, int input_tokens, int output_tokens) {
  MR_CHECK(at_s >= state_.now_s);
  HelixQueryIndex index;
  if (free_queries_.empty()) {
    MR_CHECK(state_.queries.size() < kQueriesMax) << "more than 2^20 live queries";
    index = static_cast<HelixQueryIndex>(state_.queries.size());
    state_.queries.emplace_back();
  } else {
    index = free_queries_.back();
    free_queries_.pop_back();
    state_.queries[static_cast<size_t>(index)] = {};
  }
  HelixQuery& query = state_.queries[static_cast<size_t>(index)];
  query.input_tokens = input_tokens;
  query.output_tokens = output_tokens;
  query.arrived_s = query.issued_s = at_s;
  Push(at_s, Kind::kIssue, index);
}

void HelixSimulator::Handle(const Event& event) {
  switch (event.kind) {
    case Kind::kIssue: return Issue(event.index);
    case Kind::kStartSending: return StartSending(event.index);
    case Kind::kFinishSending: return FinishSending(event.index);
    case Kind::kFinishTransmission: return FinishTransmission(event.index);
    case Kind::kGather: return Gather();
    case Kind::kStartExecution: return StartExecution(event.index);
    case Kind::kFinishExecution: return FinishExecution(event.index);
  }
}

void HelixSimulator::Issue(HelixQueryIndex index) {
  const bool first = !state_.queries[static_cast<size_t>(index)].decoding;
  const bool scheduled = scheduler_.Begin(state_, index);
  if (scheduled) {
    scheduler_.Enqueue(state_, state_.cluster.coordinator(), index);
    PushNow(Kind::kStartSending, state_.cluster.coordinator());
  } else {
    ++report_.rejected;
    free_queries_.push_back(index);
  }
  if (first) feeder_.Arrived(*this);
}

void HelixSimulator::StartSending(int endpoint) {
  sends_.clear();
  ask_again_.clear();
  scheduler_.Schedule(state_, endpoint, &sends_, &ask_again_);
  for (const HelixSend& send : sends_) Send(send);
  for (int other : ask_again_) PushNow(Kind::kStartSending, other);
}

void HelixSimulator::Send(const HelixSend& send) {
  HelixQuery& query = state_.queries[static_cast<size_t>(send.query)];
  const HelixLink& link = state_.cluster.links[static_cast<size_t>(send.link)];
  ++query.hop;
  MR_CHECK(query.hop < static_cast<int>(query.route.size()) &&
           query.route[static_cast<size_t>(query.hop)].link == send.link);
  state_.links[static_cast<size_t>(send.link)].free_bytes_per_s -= send.bytes_per_s;
  ++state_.links[static_cast<size_t>(send.link)].sending;
  state_.endpoints[static_cast<size_t>(link.from)].free_out_bytes_per_s -= send.bytes_per_s;
  state_.endpoints[static_cast<size_t>(link.to)].free_in_bytes_per_s -= send.bytes_per_s;
  query.link_bytes_per_s = send.bytes_per_s;
  query.sent_s = state_.now_s;
  const int end = state_.cluster.coordinator();
  const bool inner = link.from != end && link.to != end;
  const double bytes = static_cast<double>(query.tokens()) *
                       (state_.model.token_bytes + (inner ? state_.model.activation_bytes : 0));
  Push(state_.now_s + (link.latency_s + bytes / send.bytes_per_s) - link.latency_s,
       Kind::kFinishSending, send.query);
}

void HelixSimulator::FinishSending(HelixQueryIndex index) {
  const HelixQuery& query = state_.queries[static_cast<size_t>(index)];
  const int number = query.route[static_cast<size_t>(query.hop)].link;
  const HelixLink& link = state_.cluster.links[static_cast<size_t>(number)];
  state_.links[static_cast<size_t>(number)].free_bytes_per_s += query.link_bytes_per_s;
  --state_.links[static_cast<size_t>(number)].sending;
  state_.endpoints[static_cast<size_t>(link.from)].free_out_bytes_per_s += query.link_bytes_per_s;
  state_.endpoints[static_cast<size_t>(link.to)].free_in_bytes_per_s += query.link_bytes_per_s;
  PushNow(Kind::kStartSending, link.from);
  Push(state_.now_s + link.latency_s, Kind::kFinishTransmission, index);
}

void HelixSimulator::FinishTransmission(HelixQueryIndex index) {
  const HelixQuery& query = state_.queries[static_cast<size_t>(index)];
  const HelixHop& hop = query.route[static_cast<size_t>(query.hop)];
  const int to = state_.LinkOf(hop).to;
  if (to == state_.cluster.coordinator()) {
    gathered_.push_back(index);
    return PushNow(Kind::kGather, 0);
  }
  Node& node = nodes_[static_cast<size_t>(to)];
  const int layer = hop.layers.begin - state_.cluster.nodes[static_cast<size_t>(to)].layers.begin;
  node.queues[static_cast<size_t>(layer)].push_back(index);
  node.tokens_to_copy += query.tokens();
  CountEntry(to);
  PushNow(Kind::kStartExecution, to);
}

void HelixSimulator::CountEntry(int node) {
  const auto i = static_cast<size_t>(node);
  state_.entry_queue[i] = static_cast<int>(nodes_[i].queues.front().size());
}

void HelixSimulator::Gather() {
  // The end of an iteration may gather nothing further: what it submits arrives by an event.
  for (HelixQueryIndex query : gathered_) EndIteration(query);
  gathered_.clear();
}

void HelixSimulator::EndIteration(HelixQueryIndex index) {
  HelixQuery& query = state_.queries[static_cast<size_t>(index)];
  const bool measured = state_.now_s >= window_begin_s_;
  const double took_s = state_.now_s - query.issued_s;
  if (measured) {
    (query.decoding ? report_.decode_s : report_.prompt_s).Add(took_s);
    (query.decoding ? report_.decode_tokens : report_.prompt_tokens) += query.tokens();
  }
  const bool was_prompt = !query.decoding;
  if (query.decoding) ++query.decoded;
  query.decoding = true;
  if (query.decoded == query.output_tokens) {
    if (measured) report_.residence_s.Add(state_.now_s - query.arrived_s);
    EndQuery(index);
    return feeder_.QueryDone(*this);
  }
  query.hop = -1;
  query.issued_s = state_.now_s;
  PushNow(Kind::kIssue, index);
  if (was_prompt) feeder_.PromptDone(*this);
}

void HelixSimulator::EndQuery(HelixQueryIndex index) {
  const HelixQuery& query = state_.queries[static_cast<size_t>(index)];
  for (const HelixHop& hop : query.route) {
    const int node = state_.LinkOf(hop).to;
    if (node == state_.cluster.coordinator()) continue;
    nodes_[static_cast<size_t>(node)].kv_free +=
        int64_t{hop.layers.size()} * (query.input_tokens + query.output_tokens);
  }
  scheduler_.End(state_, index);
  free_queries_.push_back(index);
}

void HelixSimulator::MarchOn(Node& node) {
  const auto layers = static_cast<int>(node.queues.size());
  for (int offset = 1; offset < layers; ++offset) {
    const int layer = (node.layer + offset) % layers;
    if (node.queues[static_cast<size_t>(layer)].empty()) continue;
    node.layer = layer;
    return;
  }
}

void HelixSimulator::StartExecution(int index) {
  Node& node = nodes_[static_cast<size_t>(index)];
  if (!node.batch.empty()) return;  // busy: it checks again when it is done
  if (node.queues[static_cast<size_t>(node.layer)].empty()) MarchOn(node);
  if (node.queues[static_cast<size_t>(node.layer)].empty()) return;
  const double took_s = FormBatch(node);
  CountEntry(index);
  Push(state_.now_s + took_s, Kind::kFinishExecution, index);
}

// Takes what fits from the current layer's queue in order of arrival. A query that does not fit
// waits; a later one that fits does not.
double HelixSimulator::FormBatch(Node& node) {
  auto& queue = node.queues[static_cast<size_t>(node.layer)];
  int prompts = 0, prompt_tokens = 0, decodes = 0;
  int64_t context = 0;
  const int prompt_tokens_max = node.prompt_requests_max * HelixModel::kPromptTokensMax;
  const int64_t context_max = int64_t{node.decode_tokens_max} * HelixModel::kContextTokensPerDecode;
  leftover_.clear();
  for (HelixQueryIndex index : queue) {
    const HelixQuery& query = state_.queries[static_cast<size_t>(index)];
    const int tokens = query.tokens(), previous = query.previous_tokens();
    const bool fits =
        query.decoding
            ? decodes < node.decode_tokens_max && context + previous <= context_max
            : prompts < node.prompt_requests_max && prompt_tokens + tokens <= prompt_tokens_max;
    if (!fits) {
      leftover_.push_back(index);
      continue;
    }
    node.batch.push_back(index);
    (query.decoding ? decodes : prompts) += 1;
    if (query.decoding) context += previous;
    if (!query.decoding) prompt_tokens += tokens;
  }
  MR_CHECK(!node.batch.empty()) << "a query exceeds the batch limit";
  queue.swap(leftover_);
  double seconds = node.gpu->prompt_s.at(static_cast<size_t>(prompt_tokens)) +
                   node.gpu->decode_s.at(static_cast<size_t>(decodes)) * (decodes == 1 ? 2 : 1);
  if (node.layer == 0) {
    const double bytes = static_cast<double>(node.tokens_to_copy) * state_.model.activation_bytes;
    seconds += bytes / kConcatBytesPerS + bytes / kCopyBytesPerS;
    node.tokens_to_copy = 0;
  }
  return seconds;
}

void HelixSimulator::FinishExecution(int index) {
  Node& node = nodes_[static_cast<size_t>(index)];
  const bool last = node.layer + 1 == static_cast<int>(node.queues.size());
  for (HelixQueryIndex query : node.batch) {
    node.kv_free -= state_.queries[static_cast<size_t>(query)].tokens();
    if (node.kv_free < 0) ++report_.kv_overflows;
    if (last) {
      scheduler_.Enqueue(state_, index, query);
    } else {
      node.queues[static_cast<size_t>(node.layer) + 1].push_back(query);
    }
  }
  node.batch.clear();
  MarchOn(node);
  if (last) PushNow(Kind::kStartSending, index);
  PushNow(Kind::kStartExecution, index);
}

}  // namespace millrace::experiments::helix
