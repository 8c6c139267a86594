// Equal shares for clients (fair_shares.h). Waiting requests of one client are ordered by arrival;
// which client is next is known only when a request may start. Requests that have started once keep
// the order in which they started and come before all others, so that the first of them can always
// finish (docs/decisions/0003-admission.md). Requests that began elsewhere count as started.
#include "sched/fair_shares.h"
#include "sched/order_policy.h"

namespace millrace::sched {
namespace {

class FairPolicy : public OrderPolicy {
 public:
  OrderKey Join(const NewRequest& request, Time arrived, uint64_t number, int& client) override {
    client = shares_.Arrives(request.client);
    if (request.times || !request.resumed.empty()) return Start(client, number);
    return {kStartedRank + 1 + client, arrived, number};
  }
  bool reorders() const override { return true; }
  OrderKey Start(int client, uint64_t number) override {
    shares_.Dequeued(client);
    return {kStartedRank, Time{}, number};
  }
  void Drop(int client) override { shares_.Dequeued(client); }
  void Leave(int client) override { shares_.Leaves(client); }
  void Charge(int client, int64_t prompt_tokens, int64_t output_tokens) override {
    shares_.Charge(client, prompt_tokens, output_tokens);
  }
  std::optional<int64_t> NextRank() const override {
    const std::optional<FairShares::Slot> first = shares_.First();
    return first ? std::optional<int64_t>(kStartedRank + 1 + *first) : std::nullopt;
  }

 private:
  FairShares shares_;
};

}  // namespace

std::unique_ptr<OrderPolicy> MakeFairPolicy() { return std::make_unique<FairPolicy>(); }

}  // namespace millrace::sched
