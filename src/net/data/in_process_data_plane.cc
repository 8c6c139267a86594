#include "net/data/in_process_data_plane.h"

#include <utility>

#include "base/check.h"
#include "net/data/in_process_core.h"
#include "net/data/message_queue.h"

namespace millrace::net {
namespace {

class InProcessDataPlane final : public DataPlane {
 public:
  explicit InProcessDataPlane(std::shared_ptr<InProcessCore> core) : core_(std::move(core)) {}
  ~InProcessDataPlane() override { Stop(); }

  const PeerAddress& self() const override { return core_->self; }

  Status Send(const PeerAddress& to, MessageClass message_class, std::span<const std::byte> key,
              Payload payload) override {
    MR_ASSIGN_OR_RETURN(const auto channel, core_->ChannelTo(to));
    const size_t bytes = payload.size();
    const Status status = channel->Push(message_class, key, std::move(payload));
    if (status.ok()) {
      core_->counters.Add(&DataPlaneStats::messages_sent);
      core_->counters.Add(&DataPlaneStats::message_bytes_sent, bytes);
    } else if (status.code() == StatusCode::kResourceExhausted) {
      core_->counters.Add(&DataPlaneStats::queue_full);
    }
    return status;
  }

  Status SendWithin(Duration limit, const PeerAddress& to, MessageClass message_class,
                    std::span<const std::byte> key, Payload payload) override {
    MR_CHECK(!core_->loop.InThread()) << "a wait in a callback never ends";
    const Time deadline = core_->loop.Now() + limit;
    while (true) {
      const Status status = Send(to, message_class, key, payload);
      if (status.code() != StatusCode::kResourceExhausted) return status;
      MR_ASSIGN_OR_RETURN(const auto channel, core_->ChannelTo(to));
      const size_t cost = key.size() + payload.size() + kMessageCost;
      if (!channel->WaitForRoom(message_class, cost, deadline)) {
        return {StatusCode::kDeadlineExceeded, status.message()};
      }
    }
  }

  PullId Pull(const PeerAddress& from, std::span<const std::byte> request,
              std::span<std::byte> destination, Duration limit, PullCallback done) override {
    const PullId id(++core_->pulls_made);
    core_->Pull(id, from, request, destination, limit, std::move(done));
    return id;
  }
  void CancelPull(PullId pull) override {
    core_->CancelPull(pull, Cancelled("the pull was cancelled"));
  }
  Result<std::shared_ptr<SharedMemory>> AllocateShared(size_t bytes) override {
    return core_->shared.Allocate(bytes);
  }
  RegionId RegisterRegion(std::span<const std::byte> memory) override {
    return core_->regions.Register(memory);
  }
  void UnregisterRegion(RegionId region) override { core_->regions.Unregister(region); }
  void Forget(uint64_t incarnation) override { core_->Forget(incarnation); }
  DataPlaneStats stats() const override { return core_->counters.Read(); }
  void Stop() override { core_->Stop(); }

 private:
  const std::shared_ptr<InProcessCore> core_;
};

}  // namespace

std::shared_ptr<InProcessNetwork> MakeInProcessNetwork() {
  return std::make_shared<InProcessNetwork>();
}

std::unique_ptr<DataPlane> StartInProcessDataPlane(std::shared_ptr<InProcessNetwork> network,
                                                   InProcessDataPlaneOptions options,
                                                   DataPlaneEvents events) {
  auto core =
      std::make_shared<InProcessCore>(std::move(network), std::move(options), std::move(events));
  core->Start();
  return std::make_unique<InProcessDataPlane>(std::move(core));
}

}  // namespace millrace::net
