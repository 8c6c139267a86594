// Prefill and decode on different instances (DistServe section 4.3). The decode side pulls once its
// scheduler has given the request blocks; until then the prefill side's memory is the queue.
#include <algorithm>

#include "base/check.h"
#include "sim/service.h"

namespace millrace::sim {

Status Service::SortRoles() {
  for (size_t i = 0; i < options_.instances.size(); ++i) {
    auto& list = options_.instances[i].role == StageRole::kDecode ? decodes_ : entries_;
    list.push_back(static_cast<int>(i));
  }
  const auto has = [this](StageRole role) {
    return std::ranges::any_of(options_.instances,
                               [role](const InstanceOptions& o) { return o.role == role; });
  };
  if (has(StageRole::kPrefill) != has(StageRole::kDecode)) {
    return InvalidArgument("prefill instances need decode instances and vice versa");
  }
  if (has(StageRole::kPrefill) && has(StageRole::kBoth)) {
    return InvalidArgument(
        "instances for both phases cannot be mixed with instances for one phase");
  }
  link_free_.resize(options_.instances.size());
  link_busy_.resize(options_.instances.size());
  return OkStatus();
}

void Service::HandOver(RequestId id, int from, TokenId first_token, Time now) {
  const SimRequest request = recorder_.request(id);
  const int to = Dispatch(decodes_);
  sched::NewRequest asked{.id = id,
                          .prompt = prompts_.Of(request, id),
                          .params = SharedParams(request.output_tokens),
                          .known_output_tokens = request.output_tokens,
                          .resumed = {{.output = {first_token}}},
                          .imported_tokens = {request.prompt_tokens}};
  handed_[id] = {from, now};
  if (!Give(to, std::move(asked), now)) DropHandedKv(id);
}

void Service::StartPulls(int index, Time now) {
  const KvTransferOptions& link = options_.kv_transfer;
  for (const sched::KvPull& ask : instances_[index]->TakePulls()) {
    const auto handed = handed_.extract(ask.id);
    MR_CHECK(!handed.empty()) << "request " << ask.id << " was not handed over";
    const int from = handed.mapped().from;
    const int first = std::max(ask.first_token, handed.mapped().copied_tokens);
    const double bytes = link.kv_bytes_per_token * std::max(ask.end_token - first, 0);
    const Time begin = std::max(now, link_free_[from]);
    const Duration sending = Duration::Seconds(bytes / link.bytes_per_s);
    link_free_[from] = begin + sending;
    link_busy_[from] = link_busy_[from] + sending;
    const Time end = link_free_[from] + Duration::Seconds(link.latency_s);
    kv_wait_.Add((begin - handed.mapped().at).seconds());
    kv_transfer_.Add((end - begin).seconds());
    const bool held = !instances_[from]->scheduler().HeldBlocks(ask.id).empty();
    const int slot = pulls_.Take(
        {ask.id, from, index, held, availability_.life(from), availability_.life(index)});
    events_.Push(held ? end : now, {What::kKvArrival, 0, slot});
  }
}

void Service::EndPull(int slot, Time now) {
  const Pull pull = pulls_[slot];
  pulls_.Free(slot);
  if (pull.to_life != availability_.life(pull.to)) return;  // it was lost with its blocks
  const bool whole = pull.complete && pull.from_life == availability_.life(pull.from);
  instances_[pull.to]->scheduler().KvArrived(pull.id, whole, now);
  instances_[pull.from]->scheduler().ReleaseKv(pull.id);
  Submit(pull.to, now);
  Submit(pull.from, now);
}

}  // namespace millrace::sim
