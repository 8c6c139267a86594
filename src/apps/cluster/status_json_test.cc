// The JSON of GET /cluster/status and /cluster/machines: what is written, and that it is read back.
#include <gtest/gtest.h>

#include "apps/cluster/cluster_view.h"
#include "apps/cluster/controller_admin.h"
#include "base/rng.h"

namespace millrace::apps {
namespace {

// As DumpJson writes it.
std::string Compact(const char* text) { return DumpJson(*ParseJson(text)); }

cluster::ClusterStatus WholeStatus() {
  cluster::ClusterStatus status;
  status.term = Term(2);
  status.epoch = 3;
  status.degraded = "layers 4-7";
  status.given_up = {.epoch = 4, .reason = "no memory"};
  status.still = {{"s", "its process lives"}};
  status.workers = {{.name = "a",
                     .device = "cpu",
                     .control = "10.0.0.2:7101",
                     .note = "n",
                     .layers = {{0, 6}, {8, 9}},
                     .rank = 1,
                     .ranks = 2,
                     .memory_bytes = 2147483648,
                     .weight_bytes = 6291456,
                     .kv_bytes = 1073741824,
                     .batches = 12031,
                     .silent = Duration::Seconds(0.25),
                     .numeric_class = "bits",
                     .fingerprint = "fp",
                     .host_id = "h",
                     .machine = {.cores = 4, .zone = "east", .price_usd_per_hour = 0.5}}};
  status.pipelines = {{.id = PipelineId(4),
                       .workers = {"a", "b"},
                       .layers = {{0, 6}, {6, 12}},
                       .numeric_class = "bits",
                       .fingerprint = "fp",
                       .open = true,
                       .requests = 5,
                       .blocks_total = 4096,
                       .blocks_used = 120}};
  status.stages = {{.workers = {"a", ""},
                    .layers = {0, 6},
                    .role = StageRole::kPrefill,
                    .up = true,
                    .kv_blocks = 8192,
                    .kv_blocks_used = 120,
                    .running = 4,
                    .waiting = 1}};
  status.edges = {{.from = "coordinator",
                   .to = "a",
                   .planned = true,
                   .planned_tokens_per_s = 310.5,
                   .since_plan = {.tokens = 91022, .requests = 312, .bytes = 7, .seconds = 7}},
                  {.from = "a", .to = "b", .phase = EdgePhase::kHandOver, .planned = true},
                  {.from = "a",
                   .to = "c",
                   .phase = EdgePhase::kHandOver,
                   .since_plan = {.tokens = 90, .requests = 3, .bytes = 4096, .seconds = 0.5}},
                  {.from = "a", .to = "d", .since_start = {.tokens = 90, .requests = 3}}};
  status.links = {{"coordinator", "a", 0.5, 100, Duration::Seconds(0.5)},
                  {"a", "b", 0.25, 200, Duration::Seconds(0.25)}};
  status.requests = 5;
  status.moving = 1;
  status.waiting_for = {.prefill = 1, .decode = 2, .transfer = 3};
  status.server.block_size = 16;
  status.counters.joins = 2;
  return status;
}

TEST(StatusJson, IsWhatItWasBefore) {
  Json json = StatusJson("demo", WholeStatus());
  EXPECT_EQ(json["counters"].size(), cluster::AllControllerCounters().size());
  json["counters"] = {{"joins", json["counters"]["joins"]}};
  EXPECT_EQ(DumpJson(json), Compact(R"({
 "model": "demo", "term": 2, "epoch": 3, "missing": null, "degraded": "layers 4-7",
 "changing": false, "given_up": {"plan": 4, "reason": "no memory"},
 "still": [{"name": "s", "reason": "its process lives"}],
 "workers": [{"name": "a", "state": "serving", "address": "10.0.0.2:7101", "device": "cpu",
              "note": "n", "notice": null, "layers": [[0, 6], [8, 9]], "rank": 1, "ranks": 2,
              "memory_bytes": 2147483648, "weight_bytes": 6291456, "kv_bytes": 1073741824,
              "batches": 12031, "silent_s": 0.25, "cores": 4, "zone": "east",
              "price_usd_per_hour": 0.5, "spot": false, "numeric_class": "bits",
              "fingerprint": "fp"}],
 "pipelines": [{"id": 4, "state": "open", "role": "both", "workers": ["a", "b"],
                "layers": [[0, 6], [6, 12]], "numeric_class": "bits", "fingerprint": "fp",
                "requests": 5, "blocks_total": 4096, "blocks_used": 120}],
 "stages": [{"workers": ["a", ""], "layers": [[0, 6]], "role": "prefill", "up": true,
             "kv_blocks": 8192, "kv_blocks_used": 120, "running": 4, "waiting": 1}],
 "edges": [{"from": "coordinator", "to": "a", "phase": "both", "planned_tokens_per_s": 310.5,
            "tokens": 91022, "requests": 312},
           {"from": "a", "to": "b", "phase": "hand-over", "planned_tokens_per_s": 0.0,
            "tokens": 0, "requests": 0, "bytes": 0, "seconds": 0.0, "bytes_per_s": null},
           {"from": "a", "to": "c", "phase": "hand-over", "planned_tokens_per_s": 0.0,
            "tokens": 90, "requests": 3, "bytes": 4096, "seconds": 0.5, "bytes_per_s": 8192.0}],
 "links": [{"from": "coordinator", "to": "a", "latency_s": 0.5, "bytes_per_s": 100.0,
            "age_s": 0.5}],
 "requests": 5, "waiting": 0, "moving": 1,
 "waiting_for": {"prefill": 1, "decode": 2, "transfer": 3}, "cross_class_replay": false,
 "server": {"block_size": 16, "max_num_seqs": null, "max_num_batched_tokens": null,
            "max_model_len": null, "enable_prefix_caching": null},
 "counters": {"joins": 2}})"));
  EXPECT_EQ(DumpJson(WriteJson(MachinesOf(WholeStatus()))), Compact(R"({
 "workers": [{"name": "a", "device": "cpu", "host": "h", "memory_bytes": 2147483648, "cores": 4,
              "zone": "east", "price_usd_per_hour": 0.5, "spot": false, "numeric_class": "bits",
              "profile": null}],
 "links": [{"from": "coordinator", "to": "a", "latency_s": 0.5, "bytes_per_s": 100.0,
            "age_s": 0.5},
           {"from": "a", "to": "b", "latency_s": 0.25, "bytes_per_s": 200.0, "age_s": 0.25}],
 "server": {"block_size": 16, "max_num_seqs": null, "max_num_batched_tokens": null,
            "max_model_len": null, "enable_prefix_caching": null}})"));
}

TEST(StatusJson, SaysWhatAWorkerMayHave) {
  cluster::ClusterStatus status = WholeStatus();
  cluster::WorkerStatus& worker = status.workers.front();
  worker.machine = {};
  worker.draining = true;
  worker.notice = {.origin = {NoticeSource::kAws, NoticeKind::kTerminate}};
  const auto profile = std::make_shared<cost::Profile>();
  worker.profile = profile;
  const auto written = [&status] { return StatusJson("demo", status)["workers"][0]; };
  EXPECT_EQ(written()["state"], "draining");
  EXPECT_TRUE(written().at("cores").is_null());
  EXPECT_TRUE(written().at("price_usd_per_hour").is_null());
  EXPECT_TRUE(written().at("prefill_tokens_per_s").is_number());
  EXPECT_TRUE(written().at("decode_tokens_per_s").is_number());
  EXPECT_EQ(MachinesOf(status).machines[0].profile, cost::FormatProfileLine(*profile));
  EXPECT_EQ(DumpJson(written()["notice"]),
            Compact(R"({"source": "aws", "kind": "terminate", "leaves": true, "in_s": null})"));
  worker.notice_left = Duration::Seconds(0.5);
  EXPECT_EQ(written()["notice"]["in_s"], 0.5);
}

// Fills a struct with values that a field may have.
class Filler {
 public:
  explicit Filler(uint64_t seed) : rng_(seed) {}

  template <typename T>
  void Fill(const JsonField& field, T& value) {
    if constexpr (MayBeUnset<T>) {
      if (rng_.Between(0, 2) > 0) Fill(field, value.emplace());
    } else if constexpr (HasJsonFields<T>) {
      ForEachJsonField(value, [&](const JsonField& f, auto& member) { Fill(f, member); });
    } else if constexpr (std::is_same_v<T, bool>) {
      value = rng_.Between(0, 1) == 1;
    } else if constexpr (std::is_arithmetic_v<T>) {
      value = static_cast<T>(rng_.Between(std::max<int64_t>(1, field.least),
                                          std::min<int64_t>(field.most, 1 << 30))) /
              (std::is_floating_point_v<T> ? 8 : 1);
    } else if constexpr (std::is_same_v<T, std::string>) {
      value.assign(static_cast<size_t>(rng_.Between(
                       1, static_cast<int64_t>(std::min<size_t>(field.bytes_max, 600)))),
                   static_cast<char>(rng_.Between('a', 'z')));
    } else if constexpr (std::is_same_v<T, LayerRange>) {
      value.begin = static_cast<int>(rng_.Between(0, kLayerMax - 1));
      value.end = static_cast<int>(rng_.Between(value.begin + 1, kLayerMax));
    } else if constexpr (requires { value.push_back({}); }) {
      for (int64_t left = rng_.Between(0, 3); left > 0; --left) Fill(field, value.emplace_back());
    } else {
      Fill({}, value["a"]);
      Fill({}, value["b"]);
    }
  }

 private:
  Rng rng_;
};

TEST(StatusJson, IsReadAsItWasWritten) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Filler filler(seed);
    ClusterView view;
    filler.Fill({}, view);
    const Json json = WriteJson(view);
    EXPECT_EQ(DumpJson(WriteJson(ReadClusterView(json))), DumpJson(json));
    MachinesView machines;
    filler.Fill({}, machines);
    if (machines.server.block_size) machines.server.block_size = 16;
    const Json other = WriteJson(machines);
    EXPECT_EQ(DumpJson(WriteJson(ReadMachinesView(other))), DumpJson(other));
  }
}

}  // namespace
}  // namespace millrace::apps
