// Runs scenario scripts through the real scheduler and compares its decisions with those in the
// file.
//
//   run_scenarios [--rewrite] FILE...
//
// Commands: README.md. The form of a script: script.h.
#include <fmt/format.h>

#include <cctype>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sched/testing/harness.h"
#include "sched/testing/small.h"
#include "tests/scenarios/script.h"

namespace millrace::sched {
namespace {

class SchedulerScenario : public Scenario {
 public:
  std::vector<std::string> Run(const std::string& line) override {
    lines_.clear();
    const Command c = Command::Parse(line);
    const std::string verb = c.Word(0);
    if (verb == "options") {
      Options(c);
    } else if (verb == "add") {
      Add(c);
    } else if (verb == "abort") {
      Abort(c);
    } else if (verb == "schedule") {
      Schedule();
    } else if (verb == "commit") {
      Commit(c);
    } else if (verb == "step") {
      const bool counted = !c.Word(1).empty() && std::isdigit(c.Word(1)[0]);
      for (int i = counted ? std::stoi(c.Word(1)) : 1; i > 0; --i) {
        if (Schedule()) Commit(c);
      }
    } else if (verb == "wait") {
      harness().Advance(Duration::Millis(c.Int("ms", 1)));
    } else if (verb == "account") {
      Account(c);
    } else if (verb == "run") {
      RunToEnd();
    } else if (verb == "info") {
      Info(c);
    } else if (verb == "pool") {
      Pool();
    } else {
      Say("unknown command");
    }
    return lines_;
  }

 private:
  template <typename... Args>
  void Say(fmt::format_string<Args...> format, Args&&... args) {
    lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  Harness& harness() {
    if (!harness_) harness_.emplace(HarnessOptions{.scheduler = options_});
    return *harness_;
  }

  void Options(const Command& c) {
    options_.block_size = c.Int("block_size", options_.block_size);
    options_.num_blocks = c.Int("blocks", options_.num_blocks);
    options_.num_host_blocks = c.Int("host_blocks", options_.num_host_blocks);
    options_.max_num_seqs = c.Int("max_seqs", options_.max_num_seqs);
    options_.max_num_batched_tokens = c.Int("max_tokens", options_.max_num_batched_tokens);
    options_.max_model_len = c.Int("max_len", options_.max_model_len);
    options_.stages = c.Int("stages", options_.stages);
    options_.prefix_caching = c.Int("prefix", options_.prefix_caching ? 1 : 0) == 1;
    options_.watermark = c.Int("watermark_percent", 0) / 100.0;
    const std::map<std::string, KvPolicy> kv = {{"paged", KvPolicy::kPaged},
                                                {"orca", KvPolicy::kOrca},
                                                {"orca-max", KvPolicy::kOrcaMax},
                                                {"orca-pow2", KvPolicy::kOrcaPow2},
                                                {"orca-oracle", KvPolicy::kOrcaOracle}};
    if (!c.Text("kv").empty()) options_.kv_policy = kv.at(c.Text("kv"));
    if (c.Text("mix") == "prefill-first") options_.step_mix = StepMix::kPrefillFirst;
    if (c.Text("policy") == "priority") options_.policy = SchedulingPolicy::kPriority;
    if (c.Text("preempt") == "swap") options_.preemption = PreemptionMode::kSwap;
    if (c.Text("preempt") == "auto") options_.preemption = PreemptionMode::kAuto;
  }

  void Add(const Command& c) {
    SamplingParams params;
    params.n = c.Int("n", 1);
    if (c.values.contains("max")) params.max_tokens = c.Int("max", 1);
    const auto id =
        harness().Add(Prompt(c.Int("prompt", 1), c.Int("first", 10)), params, [&](NewRequest& r) {
          r.priority = c.Int("priority", 0);
          r.cache_salt = c.Text("salt");
          if (c.values.contains("known")) {
            r.known_output_tokens = c.Int("known", 1);
          }
        });
    if (!id.ok()) return Say("refused: {}", id.status().message());
    ids_[c.Word(1)] = *id;
    names_[*id] = c.Word(1);
    for (int i = 0; i < params.n; ++i) {
      sequences_[SequenceId(next_sequence_++)] =
          params.n == 1 ? c.Word(1) : fmt::format("{}.{}", c.Word(1), i);
    }
  }

  void Abort(const Command& c) {
    std::optional<int> index;
    if (c.words.size() > 2) index = std::stoi(c.Word(2));
    harness().Abort(ids_.at(c.Word(1)), index);
    SayOutputs();
  }

  bool Schedule() {
    const StepPlan* plan = harness().Schedule();
    for (const PreemptionRecord& r : harness().TakePreemptions()) {
      Say("preempt {} for {}: {}, {} blocks, {} tokens", names_[r.victim], names_[r.on_behalf_of],
          r.chosen == PreemptionMode::kSwap ? "swap" : "recompute", r.blocks_released,
          r.tokens_dropped);
    }
    if (!plan) {
      Say("nothing to schedule");
      return false;
    }
    Say("step {}", plan->id.value());
    SayCopies("swap out", plan->swap_out);
    SayCopies("swap in", plan->swap_in);
    SayCopies("copy", plan->copies);
    for (SequenceId id : plan->released) Say("  release {}", sequences_[id]);
    for (const SequenceStep& s : plan->sequences) {
      std::string blocks;
      for (BlockIndex b : plan->NewBlocksOf(s)) blocks += fmt::format(" {}", b);
      Say("  {} tokens [{}, {}){}{}", sequences_[s.id], s.start, s.start + s.num_tokens,
          blocks.empty() ? "" : fmt::format(" blocks {}+{}", s.keep_blocks, blocks),
          s.logits == LogitsWanted::kNone ? "" : " sample");
    }
    return true;
  }

  void SayCopies(const char* what, const std::vector<BlockCopy>& copies) {
    for (BlockCopy c : copies) Say("  {} {} -> {}", what, c.from, c.to);
  }

  void Commit(const Command& c) {
    if (harness().in_flight() == 0) return Say("nothing in flight");
    harness().Advance(Duration::Millis(c.Int("ms", 0)));
    const bool fail = c.Word(c.words.size() - 1) == "failing";
    harness().Commit([&](StepResult& r) {
      if (fail) r.error = Unavailable("the worker is gone");
    });
    SayOutputs();
  }

  void SayOutputs() {
    for (const RequestOutput& o : harness().TakeOutputs()) {
      if (o.account) accounts_[o.request] = *o.account;
      if (!o.finish) continue;
      const auto& all = harness().outcome(o.request, o.index);
      Say("  {}.{} ends: {}, {} tokens", names_[o.request], o.index, FinishReasonName(*o.finish),
          all.tokens.size());
    }
  }

  void RunToEnd() {
    harness().RunToEnd(100'000);
    SayOutputs();
    Pool();
  }

  void Info(const Command& c) {
    const auto info = harness().scheduler().Inspect(ids_.at(c.Word(1)), harness().now());
    if (!info) return Say("not known");
    const char* states[] = {"waiting", "pulling", "running", "preempted", "swapped", "finished"};
    Say("{}: computed {}, output {}, blocks {}, host blocks {}, cached {}, preemptions {}",
        states[static_cast<int>(info->state)], info->computed_tokens, info->output_tokens,
        info->blocks, info->host_blocks, info->cached_prompt_tokens, info->preemptions);
    if (!info->waits_for.empty()) Say("waits for {}", info->waits_for);
  }

  // Of a request that runs, or has ended.
  void Account(const Command& c) {
    const RequestId id = ids_.at(c.Word(1));
    const auto live = harness().scheduler().Account(id, harness().now());
    const TimeAccount account = live ? *live : accounts_.at(id);
    account.CheckIntegrity();
    Say("{} ms in all", (account.until() - account.begin()).millis());
    for (const TimeEntry& e : account.entries()) {
      std::string line = fmt::format("  {} ms {} {}:", e.took.millis(), TimeUseName(e.use),
                                     TimeCauseName(e.cause));
      if (e.steps > 0) line += fmt::format(" {} tokens in {} steps,", e.tokens, e.steps);
      line += fmt::format(" others {} with {} tokens", e.others, e.others_tokens);
      if (e.running > 0) line += fmt::format(", {} running", e.running);
      Say("{}{}", line, Names(e.ids));
    }
    for (const TokenGap& gap : account.gaps()) {
      Say("  gap {} ms after {} tokens: {} {}{}", gap.took.millis(), gap.after_tokens,
          TimeUseName(gap.use), TimeCauseName(gap.cause), Names(gap.ids));
    }
  }

  std::string Names(const AccountIds& ids) {
    std::string names;
    for (RequestId id : ids) {
      if (id != RequestId()) names += " " + names_.at(id);
    }
    return names.empty() ? names : ":" + names;
  }

  void Pool() {
    const SchedulerStats s = harness().scheduler().Stats();
    Say("pool: {} of {} available ({} cached), {} pending, {} reserved, {} on the host",
        s.blocks_free, s.blocks_total, s.blocks_cached, s.blocks_pending, s.blocks_reserved,
        s.host_blocks_used);
  }

  SchedulerOptions options_ = Small();
  std::optional<Harness> harness_;
  std::map<std::string, RequestId> ids_;
  std::map<RequestId, std::string> names_;
  std::map<SequenceId, std::string> sequences_;
  std::map<RequestId, TimeAccount> accounts_;  // of ended requests
  uint64_t next_sequence_ = 1;
  std::vector<std::string> lines_;
};

}  // namespace
}  // namespace millrace::sched

int main(int argc, char** argv) {
  return millrace::RunScripts(
      argc, argv, [] { return std::make_unique<millrace::sched::SchedulerScenario>(); });
}
