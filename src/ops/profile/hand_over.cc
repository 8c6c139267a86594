#include "ops/profile/hand_over.h"

#include <algorithm>
#include <future>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/statistics.h"
#include "cluster/transfer/kv_exchange.h"
#include "cluster/transfer/kv_plane.h"
#include "net/data/data_plane.h"

namespace millrace::ops {
namespace {

constexpr int64_t kHandOverBytes = int64_t{64} << 20;  // a prompt of some thousand tokens
constexpr int kBlockSize = 16;
constexpr PipelineId kFrom{1}, kTo{2};

// A worker's side of KV transfers.
class End {
 public:
  explicit End(const Clock& clock) : exchange_(clock) {}
  ~End() {
    if (plane_) plane_->Stop();
  }

  Status Start() {
    net::TcpDataPlaneOptions options;
    options.token = "a profile";
    net::DataPlaneEvents events;
    events.on_pull = [this](const net::PeerAddress&,
                            std::span<const std::byte> request) -> Result<net::PullSource> {
      MR_ASSIGN_OR_RETURN(const auto asked, cluster::DecodePullRequest(request));
      const auto* kv = std::get_if<cluster::KvRequest>(&asked);
      if (kv == nullptr) return InvalidArgument("only KV is served here");
      return kv_plane_.Serve(*kv);
    };
    MR_ASSIGN_OR_RETURN(plane_, net::StartTcpDataPlane(std::move(options), std::move(events)));
    kv_plane_.Use(plane_.get());
    return OkStatus();
  }

  cluster::KvExchange& exchange() { return exchange_; }
  const net::PeerAddress& self() const { return plane_->self(); }

 private:
  cluster::KvExchange exchange_;
  cluster::KvPlane kv_plane_{exchange_};
  std::unique_ptr<net::DataPlane> plane_;  // last: its threads use the others
};

// Closes them when the measurement ends.
class TwoPipelines {
 public:
  TwoPipelines(stage::Stage& stage, const ModelSpec& spec, int tokens) : stage_(stage) {
    stage::StagePipeline options;
    options.layers = {0, spec.num_layers};
    options.block_size = kBlockSize;
    options.num_blocks = tokens / kBlockSize;
    options.first = options.last = true;
    opened_ = stage_.OpenPipeline(kFrom, options);
    if (opened_.ok()) opened_ = stage_.OpenPipeline(kTo, options);
  }
  ~TwoPipelines() {
    stage_.ClosePipeline(kFrom);
    stage_.ClosePipeline(kTo);
  }
  const Status& opened() const { return opened_; }

 private:
  stage::Stage& stage_;
  Status opened_;
};

}  // namespace

Result<double> MeasureHandOver(const std::shared_ptr<stage::Stage>& stage, const ModelSpec& spec,
                               int tokens_max, int repeats, const Clock& clock) {
  const int64_t wanted = std::min<int64_t>(kHandOverBytes / spec.KvBytesPerToken(), tokens_max);
  const int tokens = std::max(1, static_cast<int>(wanted) / kBlockSize) * kBlockSize;
  const TwoPipelines pipelines(*stage, spec, tokens);
  MR_RETURN_IF_ERROR(pipelines.opened());
  End from(clock), to(clock);
  MR_RETURN_IF_ERROR(from.Start());
  MR_RETURN_IF_ERROR(to.Start());
  ExportKv exported;
  exported.handle = {.pipeline = kFrom, .generation = 1};
  exported.blocks.resize(static_cast<size_t>(tokens / kBlockSize));
  std::iota(exported.blocks.begin(), exported.blocks.end(), BlockIndex{0});
  exported.tokens = tokens;
  exported.lease = Duration::Seconds(60);
  const LayerRange layers{0, spec.num_layers};
  from.exchange().Export(layers, stage, exported);
  PullKv pull{.pipeline = kTo, .blocks = exported.blocks, .end_token = tokens};
  KvSource& source = pull.sources.emplace_back();
  source.from.data = from.self().endpoint;
  source.from.incarnation = Incarnation(from.self().incarnation);
  source.from.host_id = from.self().host_id;
  source.from.process_id = from.self().process_id;
  source.handle = exported.handle;
  source.layers = layers;
  std::vector<double> rates;
  for (int i = 0; i <= repeats; ++i) {
    std::promise<PullDone> done;
    const Time began = clock.Now();
    to.exchange().Pull(layers, stage, pull,
                       [&](PullDone result) { done.set_value(std::move(result)); });
    const PullDone result = done.get_future().get();
    MR_RETURN_IF_ERROR(result.status);
    // The first one connects, and writes to memory that was never used.
    if (i > 0) rates.push_back(static_cast<double>(result.bytes) / (clock.Now() - began).seconds());
  }
  from.exchange().PipelineClosed(kFrom);
  return Median(std::move(rates));
}

}  // namespace millrace::ops
