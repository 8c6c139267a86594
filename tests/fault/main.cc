// sim-fault: runs the cluster's production state machines under seeded faults and audits
// them after every event. A seed replays its schedule exactly.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/cli/help.h"
#include "apps/cli/parse.h"
#include "base/log.h"
#include "base/progress.h"
#include "tests/fault/campaign.h"

namespace millrace::apps {
namespace {

namespace lab = sim::fault;

constexpr int64_t kSchedulesMax = 1'000'000'000;
constexpr int64_t kEventsMax = 1'000'000'000;
constexpr int kJobsMax = 256;

struct SimFaultFlags {
  int64_t seed = 1, count = 1, events = 2'000'000;
  int jobs = 0, audit_every = 1;
  std::optional<int> faults, workers, requests;
  std::string only;
  bool verbose = false, no_progress = false;
};

// A failed check inside a state machine ends the process; the seed is then needed to replay it.
// Calls only what a signal handler may call.
void ExplainAbort(int) {
  const auto write_text = [](const char* text, size_t size) {
    (void)!write(STDERR_FILENO, text, size);
  };
  constexpr std::string_view kBefore = "sim-fault: a check failed in the schedule of seed ";
  write_text(kBefore.data(), kBefore.size());
  char digits[24];
  size_t at = sizeof digits;
  digits[--at] = '\n';
  uint64_t seed = lab::SeedOfThisThread().value_or(0);
  do {
    digits[--at] = static_cast<char>('0' + seed % 10);
    seed /= 10;
  } while (seed > 0);
  write_text(digits + at, sizeof digits - at);
  _exit(1);
}

Result<std::optional<lab::FaultKind>> ParseKind(const std::string& name) {
  if (name.empty()) return std::optional<lab::FaultKind>();
  std::string names;
  for (int k = 0; k < lab::kFaultKinds; ++k) {
    const auto kind = static_cast<lab::FaultKind>(k);
    if (lab::FaultName(kind) == name) return std::optional(kind);
    names += fmt::format("{}{}", k > 0 ? ", " : "", lab::FaultName(kind));
  }
  return InvalidArgument(
      fmt::format("--only: unknown fault '{}'; known are {}", Printable(name, 60), names));
}

std::string FaultsText(const lab::LabReport& totals) {
  std::string text;
  for (int k = 0; k < lab::kFaultKinds; ++k) {
    const uint64_t count = totals.faults[static_cast<size_t>(k)];
    if (count == 0) continue;
    text += fmt::format("  {:<20}{:>12}\n", lab::FaultName(static_cast<lab::FaultKind>(k)), count);
  }
  return text;
}

std::string ReportText(const lab::CampaignResult& result, const lab::CampaignOptions& options,
                       double seconds) {
  const lab::LabReport& t = result.totals;
  const lab::ControllerTotals& c = t.controller;
  std::string text = fmt::format(
      "seeds {} to {}: {} schedules in {:.1f} s, {:.0f} schedules/s, {:.3g} events/s, {:.0f} times "
      "real time\n",
      options.first_seed, options.first_seed + static_cast<uint64_t>(options.count) - 1,
      result.schedules, seconds, static_cast<double>(result.schedules) / seconds,
      static_cast<double>(t.events) / seconds, t.virtual_s / seconds);
  text += "faults\n" + FaultsText(t);
  text += fmt::format(
      "tokens delivered {}, batches {}, messages {}, duplicated {}\n"
      "workers joined {}, refused {}, lost {}; pipelines opened {}, lost {}; requests replayed {} "
      "({} fetched recoverable KV, {} of these for some layers), failed {}\n"
      "moves {} ({} failed), pulls served {}, pulls failed {}, collectives {}, operations refused "
      "{}\n"
      "stale messages dropped: {} by controllers, {} by workers\n",
      t.tokens, t.batches, t.messages, t.duplicates, c.joins, c.joins_refused, c.workers_lost,
      c.pipelines_opened, c.pipelines_lost, c.replays, c.fetched, c.computed_in_part, t.errors,
      c.moves, c.moves_failed, t.pulls_served, t.pulls_failed, t.collectives, t.operations_refused,
      c.stale, t.stale_at_workers);
  return text;
}

Status Run(const SimFaultFlags& flags) {
  lab::CampaignOptions options;
  options.first_seed = static_cast<uint64_t>(flags.seed);
  options.count = flags.count;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  options.jobs = flags.jobs > 0 ? flags.jobs : std::clamp(cores, 1, kJobsMax);
  if (flags.count == 1) options.jobs = 1;
  options.scenario.faults = flags.faults;
  options.scenario.workers = flags.workers;
  options.scenario.requests = flags.requests;
  MR_ASSIGN_OR_RETURN(options.scenario.only, ParseKind(flags.only));
  options.lab.audit_every = flags.audit_every;
  options.lab.events_max = static_cast<uint64_t>(flags.events);
  options.lab.narrate = flags.verbose;
  if (!flags.verbose) spdlog::set_level(spdlog::level::off);
  std::signal(SIGABRT, ExplainAbort);
  const SteadyClock clock;
  const Time start = clock.Now();
  lab::CampaignResult result;
  std::optional<Progress> progress;
  if (!flags.no_progress && flags.count > 1) {
    progress.emplace("fault schedules", ProgressUnit::kRequests, flags.count, stderr,
                     ProgressStyle::ForStream(stderr), clock);
  }
  result = lab::RunCampaign(options, [&](int64_t done) {
    if (progress) progress->Update(done);
    return true;
  });
  progress.reset();
  std::signal(SIGABRT, SIG_DFL);
  fmt::print("{}", ReportText(result, options, (clock.Now() - start).seconds()));
  if (!result.broken_seed) {
    fmt::print("all {} invariants held after every event\n", lab::kInvariants);
    return OkStatus();
  }
  const lab::Violation& broken = *result.totals.violation;
  fmt::print("seed {}, event {}, at {:.4f} s: invariant '{}' is broken: {}\n", *result.broken_seed,
             broken.event, broken.at_s, lab::InvariantName(broken.invariant), broken.what);
  return Internal(
      fmt::format("seed {} breaks the invariant '{}'; replay it with --seed {} --verbose",
                  *result.broken_seed, lab::InvariantName(broken.invariant), *result.broken_seed));
}

std::unique_ptr<Command> MakeSimFault() {
  auto command = std::make_unique<Command>();
  command->name = "sim-fault";
  command->summary = "Run the cluster under seeded faults and check it after every event";
  command->description =
      "Runs the production controller and workers over modelled links, clocks and devices, with a "
      "model whose every token depends on every layer's KV of the whole context. A seed decides "
      "workers, layout, requests and faults; invariants are checked after every event. A broken "
      "one ends the run with exit code 1 and the seed, which replays it exactly.";
  command->log_level = "warning";
  command->examples = {{"sim-fault --count 10000", "ten thousand schedules on every core"},
                       {"sim-fault --seed 4711 --verbose", "one schedule, printed event by event"},
                       {"sim-fault --count 1000 --only stop --faults 3", "only stopped processes"}};
  auto flags = std::make_shared<SimFaultFlags>();
  constexpr auto kWhich = "Schedules";
  command->Add(kWhich, IntOption("seed", "N", &flags->seed, 0, std::numeric_limits<int64_t>::max()),
               "Seed of the first schedule; the next ones count up");
  command->Add(kWhich, IntOption("count", "N", &flags->count, 1, kSchedulesMax),
               "Number of schedules");
  command->Add(kWhich, IntOption("jobs", "N", &flags->jobs, 0, kJobsMax),
               "Threads; 0: one per core");
  constexpr auto kWhat = "Contents of a schedule, instead of those drawn from its seed";
  command->Add(kWhat, IntOption("faults", "N", &flags->faults, 0, 64), "Number of faults");
  command->Add(kWhat, TextOption("only", "KIND", &flags->only), "Only faults of this kind");
  command->Add(kWhat, IntOption("workers", "N", &flags->workers, 1, 16), "Number of workers");
  command->Add(kWhat, IntOption("requests", "N", &flags->requests, 1, 256), "Number of requests");
  constexpr auto kHow = "Checks and output";
  command->Add(kHow, IntOption("events", "N", &flags->events, 1, kEventsMax),
               "A schedule with more events counts as hung");
  command->Add(kHow, IntOption("audit-every", "N", &flags->audit_every, 1, 1'000'000),
               "Check every block only after each N events of the controller");
  command->Add(kHow, FlagOption("verbose", &flags->verbose),
               "Print faults, starts and ends, and the processes' log lines");
  command->Add(kHow, FlagOption("no-progress", &flags->no_progress), "No progress line");
  AddGeneralOptions(*command);
  command->validate = [flags] { return ParseKind(flags->only).status(); };
  command->run = [flags] { return Run(*flags); };
  return command;
}

std::optional<std::string> GetEnvironment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

int Main(const std::vector<std::string>& args) {
  const auto command = MakeSimFault();
  const auto invocation = ParseCommandLine(*command, args, GetEnvironment);
  if (!invocation.ok()) {
    fmt::print(stderr, "{}\n", invocation.status().message());
    return 2;
  }
  if (invocation->help) {
    fmt::print("{}", FormatHelp(*command, invocation->path));
    return 0;
  }
  Status status = InitLog(command->log_level, command->log_format);
  if (status.ok()) status = command->run();
  if (status.ok()) return 0;
  fmt::print(stderr, "{}: {}\n", command->name, status.message());
  return 1;
}

}  // namespace
}  // namespace millrace::apps

int main(int argc, char** argv) {
  return millrace::apps::Main(std::vector<std::string>(argv + 1, argv + argc));
}
