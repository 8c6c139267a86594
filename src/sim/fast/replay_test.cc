// Records a live cluster of one worker with its threads, its clock and a random load. The
// simulator's replay of the log must make the same decisions.
#include "sim/fast/replay.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/rng.h"
#include "cluster/runtime/one_worker.h"
#include "sched/testing/harness.h"
#include "stage/testing/hash_stage.h"

namespace millrace::sim {
namespace {

constexpr int kVocabulary = 500;
const stage::HashModel kModel{.num_layers = 1, .vocab_size = kVocabulary};

struct Case {
  sched::PreemptionMode preemption = sched::PreemptionMode::kRecompute;
  bool prefix_caching = true;
  int host_blocks = 0;
};

std::vector<TokenId> RandomPrompt(Rng& rng) {
  // Few distinct prefixes, so that they hit; lengths that make blocks scarce.
  std::vector<TokenId> prompt(static_cast<size_t>(rng.Between(1, 90)));
  const auto family = static_cast<TokenId>(rng.Between(1, 3));
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = i < 40 ? family : static_cast<TokenId>(rng.Between(0, kVocabulary - 1));
  }
  return prompt;
}

std::string RecordLiveRun(const Case& c, int requests, uint64_t seed) {
  std::string log;
  {
    cluster::ControllerHostOptions options;
    options.controller.num_layers = kModel.num_layers;
    options.controller.scheduler = {.block_size = 16,
                                    .num_host_blocks = c.host_blocks,
                                    .max_num_seqs = 8,
                                    .max_num_batched_tokens = 64,
                                    .max_model_len = 256,
                                    .preemption = c.preemption,
                                    .prefix_caching = c.prefix_caching,
                                    .eos_token_ids = {7}};
    options.controller.scheduler.costs.kv_bytes_per_block = 1024;
    // Without the pipeline's name, which each line begins with; there is one pipeline only.
    options.controller.step_log = [&log](std::string_view line) {
      ((log += '{') += line.substr(line.find(',') + 1)) += '\n';
    };
    cluster::OneWorker worker{
        .stage = std::make_shared<stage::HashStage>(kModel, LayerRange{0, kModel.num_layers}),
        .kv_bytes_per_token = 64,
        .num_blocks = 40};
    const SteadyClock clock;
    const auto cluster =
        std::move(cluster::StartOneWorker(std::move(options), std::move(worker), clock)).value();
    cluster::Generator& generator = cluster->host();
    Rng rng(seed);
    for (int i = 0; i < requests; ++i) {
      SamplingParams params;
      params.max_tokens = static_cast<int>(rng.Between(1, 60));
      params.n = rng.Between(0, 9) == 0 ? 3 : 1;
      params.ignore_eos = rng.Between(0, 1) == 0;
      const auto id =
          generator.Submit({.prompt = RandomPrompt(rng), .params = params}, [](RequestOutput&&) {});
      EXPECT_TRUE(id.ok()) << id.status().ToString();
      if (rng.Between(0, 7) == 0) generator.Abort(*id);
      if (rng.Between(0, 3) == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(rng.Between(0, 2000)));
      }
    }
    generator.Drain(Duration::Seconds(60));
  }
  return log;
}

void ExpectSame(const Case& c, uint64_t seed) {
  const std::string text = RecordLiveRun(c, 150, seed);
  const auto log = sched::ParseStepLog(text);
  ASSERT_TRUE(log.ok()) << log.status().ToString();
  const auto report = Replay(*log);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_FALSE(report->first_difference) << *report->first_difference;
  EXPECT_EQ(report->requests, 150u);
  EXPECT_GT(report->steps, 100u);
  EXPECT_GT(report->tokens, 150u);
}

TEST(Replay, ALiveRunIsDecidedTheSameAgain) { ExpectSame({}, 1); }

TEST(Replay, WithoutPrefixCache) { ExpectSame({.prefix_caching = false}, 2); }

TEST(Replay, WithSwapping) {
  ExpectSame({.preemption = sched::PreemptionMode::kAuto, .host_blocks = 64}, 3);
}

TEST(Replay, AnotherDecisionIsFound) {
  auto log = std::move(sched::ParseStepLog(RecordLiveRun({}, 40, 4))).value();
  log.options.max_num_seqs = 2;  // as if the server had other options
  const auto report = Replay(log);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ASSERT_TRUE(report->first_difference);
  EXPECT_NE(report->first_difference->find("step"), std::string::npos);
}

TEST(StepLog, LinesReadBackAsTheyWere) {
  const std::string text = RecordLiveRun({}, 20, 5);
  const auto log = std::move(sched::ParseStepLog(text)).value();
  std::string again = sched::EncodeHeader(log.options) + '\n';
  for (const auto& entry : log.entries) (again += sched::EncodeEntry(entry)) += '\n';
  EXPECT_EQ(again, text);
}

// Requests that arrive from and leave for other schedulers in all possible ways.
std::string RecordHandOvers(uint64_t seed, Rng& rng) {
  std::string log;
  sched::HarnessOptions options;
  options.scheduler.num_blocks = 40;
  options.scheduler.num_host_blocks = seed % 2 == 0 ? 20 : 0;
  options.scheduler.preemption =
      seed % 2 == 0 ? sched::PreemptionMode::kSwap : sched::PreemptionMode::kRecompute;
  options.scheduler.max_model_len = 256;
  options.scheduler.max_num_batched_tokens = 64;
  options.step_log = [&log](std::string_view line) { (log += line) += '\n'; };
  sched::Harness h(options);
  std::vector<sched::KvPull> pulls;
  uint64_t last_id = 0;
  for (int turn = 0; turn < 600; ++turn) {
    h.Turn();
    h.Advance(Duration::Millis(1));
    for (sched::KvPull& pull : h.TakePulls()) pulls.push_back(std::move(pull));
    if (rng.Between(0, 5) == 0) {
      SamplingParams params;
      params.n = rng.Between(0, 5) == 0 ? 2 : 1;
      params.max_tokens = static_cast<int>(rng.Between(20, 60));
      (void)h.Add(RandomPrompt(rng), params, [&](sched::NewRequest& r) {
        r.id = RequestId(++last_id);
        r.stop_after_prompt = params.n == 1 && rng.Between(0, 3) == 0;
        if (r.stop_after_prompt || rng.Between(0, 1)) return;
        r.times = RequestTimes{.arrived = h.now(), .first_token = h.now()};
        for (int k = 0; k < params.n; ++k) r.resumed.push_back({RandomPrompt(rng), k == 1});
        for (auto& s : r.resumed) s.output.resize(std::min<size_t>(s.output.size(), 19));
        r.import_open = params.n == 1 && rng.Between(0, 4) != 0;
        for (const auto& s : r.resumed) {
          r.imported_tokens.push_back(s.finished ? 0 : static_cast<int>(r.prompt->size()));
        }
      });
    }
    const RequestId id(static_cast<uint64_t>(rng.Between(1, 1 + static_cast<int64_t>(last_id))));
    switch (rng.Between(0, 14)) {
      case 0: {
        auto left = h.scheduler().Detach(id, h.now(), Duration::Millis(20));
        if (left && rng.Between(0, 1)) (void)h.AddAsIs(left->request);
        break;
      }
      case 1: (void)h.scheduler().Export(id, h.now(), Duration::Millis(20)); break;
      case 2: h.scheduler().Pause(id); break;
      case 3:
        if (pulls.empty()) break;
        (void)h.ExtendImport(pulls.back().id, {1, 2, 3}, pulls.back().end_token + 2);
        break;
      case 7: h.scheduler().CloseImport(pulls.empty() ? id : pulls.back().id, h.now()); break;
      case 4: h.scheduler().ReleaseKv(id); break;
      case 5: (void)h.scheduler().ExtendHold(id, h.now(), Duration::Millis(20)); break;
      case 6: (void)h.scheduler().LimitBlocks(static_cast<int>(rng.Between(20, 40))); break;
      case 8:
        h.scheduler().LimitSteps({.tokens_beside_decodes = static_cast<int>(rng.Between(1, 20)),
                                  .tokens_before_prompts = static_cast<int>(rng.Between(1, 20))});
        break;
      default:
        if (!pulls.empty() && rng.Between(0, 1)) {
          h.scheduler().KvArrived(pulls.back().id, rng.Between(0, 3) != 0, h.now());
          pulls.pop_back();
        }
    }
    if (rng.Between(0, 9) == 0) {
      for (uint64_t i = 1; i <= last_id; ++i) h.scheduler().Unpause(RequestId(i));
    }
    if (turn % 300 == 299) (void)h.scheduler().DetachAll(h.now());
  }
  return log;
}

TEST(Replay, HandOversAreDecidedTheSameAgain) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Rng rng(seed);
    const std::string text = RecordHandOvers(seed, rng);
    for (const char* kind :
         {"\"kv_extended\"", "\"detach\"", "\"expose\"", "\"freeze\"", "\"resumed\"", "\"times\"",
          "\"kv_arrived\"", "\"hold_extended\"", "\"limit_blocks\"", "\"limit_steps\"",
          "\"import_open\"", "\"import_closed\"", "\"stop_after_prompt\""}) {
      EXPECT_NE(text.find(kind), std::string::npos) << kind << " never happened";
    }
    const auto log = sched::ParseStepLog(text);
    ASSERT_TRUE(log.ok()) << log.status().ToString();
    const auto report = Replay(*log);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_FALSE(report->first_difference) << *report->first_difference;
    EXPECT_GT(report->steps, 300u);
    std::string again = sched::EncodeHeader(log->options) + '\n';
    for (const auto& entry : log->entries) (again += sched::EncodeEntry(entry)) += '\n';
    EXPECT_EQ(again, text);
  }
}

// KV of a request of one sequence, as 0.2.0 wrote it.
TEST(StepLog, ReadsTheVersionBefore) {
  std::string text = RecordLiveRun({}, 3, 6);
  text.replace(text.find("step_log\":4"), 11, "step_log\":3");
  text += "{\"kv_extended\": 9, \"more_output\": [5, 6], \"imported_tokens\": 32}\n";
  const auto log = sched::ParseStepLog(text);
  ASSERT_TRUE(log.ok()) << log.status().ToString();
  const auto* extension = std::get_if<sched::LoggedKvExtension>(&log->entries.back());
  ASSERT_NE(extension, nullptr);
  EXPECT_EQ(extension->imported_tokens, std::vector<int>{32});
  ASSERT_EQ(extension->more.size(), 1u);
  EXPECT_EQ(extension->more[0].output, (std::vector<TokenId>{5, 6}));
}

TEST(StepLog, WrongLinesAreNamed) {
  const std::string text = RecordLiveRun({}, 3, 6);
  const auto expect = [](const std::string& log, const std::string& part) {
    const auto parsed = sched::ParseStepLog(log);
    ASSERT_FALSE(parsed.ok());
    EXPECT_NE(parsed.status().message().find(part), std::string::npos) << parsed.status().message();
  };
  expect("", "empty");
  expect("{}\n", "line 1");
  std::string earlier = text;
  earlier.replace(text.find("step_log\":4"), 11, "step_log\":2");
  expect(earlier, "a step log of version 2, only versions 3 and 4 are read; `millrace serve ");
  expect(text + "nonsense\n", "line");
  expect(text + "{\"step\": 1}\n", "line");
  expect(text + "{\"commit\": \"x\", \"tokens\": []}\n", "\"commit\"");
  expect(text + "{\"abort\": -1}\n", "\"abort\"");
  expect(text + "{\"add\": 9, \"resumed\": [1]}\n", "\"resumed\"");
  expect(text + "{\"add\": 9, \"times\": []}\n", "\"times\"");
  expect(text + "{\"detach\": 9, \"hold_kv_ns\": \"x\"}\n", "\"hold_kv_ns\"");
  expect(text + text, "one is replayed at a time");
  // As a cluster writes it: every line names its pipeline.
  std::string named = text;
  for (size_t at = 0; at < named.size(); at = named.find('\n', at) + 1) {
    named.replace(at, 1, "{\"pipeline\":4,");
  }
  EXPECT_TRUE(sched::ParseStepLog(named).ok());
  expect(named + text, "grep '^{\"pipeline\":4,' FILE");
}

}  // namespace
}  // namespace millrace::sim
