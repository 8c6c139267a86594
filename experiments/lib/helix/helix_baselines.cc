#include "experiments/lib/helix/helix_baselines.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace millrace::experiments::helix {
namespace {

constexpr double kSlowBytesPerS = 10;  // a link with less free bandwidth counts as busy

// The bandwidth that `link` of `endpoint` may take now: an even share of the sender's card minus
// the link's current load, and at most what wire and receiver have free.
double FreeBytesPerS(const HelixState& state, int endpoint, int link) {
  const HelixCluster& cluster = state.cluster;
  const HelixLink& spec = cluster.links[static_cast<size_t>(link)];
  const HelixEndpoint& from = state.endpoints[static_cast<size_t>(endpoint)];
  const double nic = endpoint == cluster.coordinator()
                         ? cluster.nic_out_bytes_per_s
                         : cluster.nodes[static_cast<size_t>(endpoint)].nic_out_bytes_per_s;
  const double wire = state.links[static_cast<size_t>(link)].free_bytes_per_s;
  const double share = nic / static_cast<double>(from.out_links.size()) - (spec.bytes_per_s - wire);
  return std::min({share, from.free_out_bytes_per_s, wire,
                   state.endpoints[static_cast<size_t>(spec.to)].free_in_bytes_per_s});
}

void AddHop(HelixState& state, int endpoint, HelixQueryIndex index, int link) {
  const int to = state.cluster.links[static_cast<size_t>(link)].to;
  state.queries[static_cast<size_t>(index)].route.push_back({link, state.LayersAt(endpoint, to)});
}

}  // namespace

HelixRandomScheduler::HelixRandomScheduler(const HelixCluster& cluster, Choice choice,
                                           PythonRandom* random)
    : choice_(choice),
      random_(random),
      decodes_(cluster.links.size()),
      prompts_(cluster.nodes.size() + 1) {}

void HelixRandomScheduler::Enqueue(HelixState& state, int endpoint, HelixQueryIndex index) {
  const HelixQuery& query = state.queries[static_cast<size_t>(index)];
  HelixQueue& queue =
      query.decoding
          ? decodes_[static_cast<size_t>(query.route[static_cast<size_t>(query.hop + 1)].link)]
          : prompts_[static_cast<size_t>(endpoint)];
  queue.push_back({enqueued_++, index});
}

// Marks the free links whose node has the shortest queue. A link to the coordinator ends the
// search.
void HelixRandomScheduler::Allow(const HelixState& state, int endpoint) {
  if (choice_ == Choice::kAny) return;
  int shortest = std::numeric_limits<int>::max();
  std::vector<int> links;
  for (int link : state.endpoints[static_cast<size_t>(endpoint)].out_links) {
    const int to = state.cluster.links[static_cast<size_t>(link)].to;
    if (to == state.cluster.coordinator()) {
      links.push_back(link);
      break;
    }
    const int length = state.entry_queue[static_cast<size_t>(to)];
    if (length < shortest) links.clear();
    if (length <= shortest) links.push_back(link);
    shortest = std::min(shortest, length);
  }
  for (FreeLink& free : free_) {
    free.allowed = std::find(links.begin(), links.end(), free.link) != links.end();
  }
}

// Gives free links the waiting decodes that arrived before `before`.
void HelixRandomScheduler::TakeDecodes(uint64_t before) {
  for (FreeLink& free : free_) {
    HelixQueue& queue = decodes_[static_cast<size_t>(free.link)];
    if (free.query || queue.empty() || queue.front().order >= before) continue;
    free.query = queue.front().query;
    queue.pop_front();
  }
}

void HelixRandomScheduler::PlacePrompt(HelixState& state, int endpoint, HelixQueryIndex index) {
  std::vector<size_t> order(free_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  random_->Shuffle(&order);
  for (size_t i : order) {
    if (!free_[i].allowed || free_[i].query) continue;
    free_[i].query = index;
    return AddHop(state, endpoint, index, free_[i].link);
  }
}

void HelixRandomScheduler::Schedule(HelixState& state, int endpoint, std::vector<HelixSend>* sends,
                                    std::vector<int>*) {
  free_.clear();
  for (int link : state.endpoints[static_cast<size_t>(endpoint)].out_links) {
    const double bytes_per_s = FreeBytesPerS(state, endpoint, link);
    if (bytes_per_s > kSlowBytesPerS) free_.push_back({link, bytes_per_s, true, {}});
  }
  Allow(state, endpoint);
  HelixQueue& prompts = prompts_[static_cast<size_t>(endpoint)];
  for (const HelixWaiting& prompt : prompts) {
    TakeDecodes(prompt.order);
    PlacePrompt(state, endpoint, prompt.query);
  }
  TakeDecodes(enqueued_);
  for (const FreeLink& free : free_) {
    if (!free.query) continue;
    sends->push_back({*free.query, free.link, free.bytes_per_s});
    std::erase_if(prompts, [&](const HelixWaiting& w) { return w.query == *free.query; });
  }
}

HelixSwarmScheduler::HelixSwarmScheduler(const HelixCluster& cluster)
    : senders_(cluster.nodes.size() + 1),
      mean_s_(cluster.links.size(), kInitialPriority),
      waiting_(cluster.links.size()) {
  for (size_t i = 0; i < cluster.links.size(); ++i) {
    senders_[static_cast<size_t>(cluster.links[i].from)].strides.push(
        {kInitialPriority, static_cast<int>(i)});
  }
}

void HelixSwarmScheduler::Enqueue(HelixState&, int endpoint, HelixQueryIndex query) {
  senders_[static_cast<size_t>(endpoint)].fresh.push_back(query);
}

// Queries that have just run here report to the sender how long they took since they left it.
void HelixSwarmScheduler::Measure(HelixState& state, const Sender& sender,
                                  std::vector<int>* ask_again) {
  for (HelixQueryIndex index : sender.fresh) {
    const HelixQuery& query = state.queries[static_cast<size_t>(index)];
    const HelixHop& hop = query.route[static_cast<size_t>(query.hop)];
    double& mean_s = mean_s_[static_cast<size_t>(hop.link)];
    mean_s = kSmoothing * (state.now_s - query.sent_s) + (1 - kSmoothing) * mean_s;
    const int from = state.LinkOf(hop).from;
    if (std::find(ask_again->begin(), ask_again->end(), from) == ask_again->end()) {
      ask_again->push_back(from);
    }
  }
}

void HelixSwarmScheduler::Assign(HelixState& state, int endpoint, Sender& sender) {
  for (HelixQueryIndex index : sender.fresh) {
    const HelixQuery& query = state.queries[static_cast<size_t>(index)];
    if (!query.decoding) {
      MR_CHECK(!sender.strides.empty()) << "a dead end";
      const auto [priority, link] = sender.strides.top();
      sender.strides.pop();
      sender.strides.push({priority + mean_s_[static_cast<size_t>(link)], link});
      AddHop(state, endpoint, index, link);
    }
    const int link = query.route[static_cast<size_t>(query.hop + 1)].link;
    waiting_[static_cast<size_t>(link)].push_back(index);
  }
  sender.fresh.clear();
}

void HelixSwarmScheduler::Schedule(HelixState& state, int endpoint, std::vector<HelixSend>* sends,
                                   std::vector<int>* ask_again) {
  Sender& sender = senders_[static_cast<size_t>(endpoint)];
  if (endpoint != state.cluster.coordinator()) Measure(state, sender, ask_again);
  std::sort(ask_again->begin(), ask_again->end());
  Assign(state, endpoint, sender);
  for (int link : state.endpoints[static_cast<size_t>(endpoint)].out_links) {
    auto& queue = waiting_[static_cast<size_t>(link)];
    if (queue.empty()) continue;
    const double bytes_per_s = FreeBytesPerS(state, endpoint, link);
    if (bytes_per_s <= kSlowBytesPerS) continue;
    sends->push_back({queue.front(), link, bytes_per_s});
    queue.pop_front();
  }
}

}  // namespace millrace::experiments::helix
