// 64 unlike spot machines over a day of three clouds' traces, with a load that changes by the hour:
// good answers, cost and decisions of the server's autopilot, against machines on demand, spot
// machines under one plan, and an oracle that knows which machines will be there.
//
// The clouds' day is compressed: an hour takes 15 minutes. So are their notices and the loads of
// weights. Answers, links and the autopilot's own times stay as they are, so to them changes come
// four times as often as in the clouds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/file.h"
#include "experiments/list.h"
#include "experiments/pilot_runs.h"
#include "sim/load/availability.h"

namespace millrace::experiments {
namespace {

using What = sim::MembershipChange::What;

constexpr double kDay_s = 86400;
constexpr double kNotice_s = 120, kScaleLoad_s = 30;  // in the clouds' time
constexpr double kSpotPrice = 1.9046 / 3.912;  // of the price on demand: g4dn.12xlarge (SpotServe)
constexpr char kScaleModel[] = "llama-70b";
constexpr double kPeak = 2;  // requests per second
// Of a search: of its evaluations, and of the requests by which it judges a plan.
constexpr double kEffort = 0.1;
constexpr double kRunLimit_s = 900;  // on the wall, of one simulated day
constexpr double kSearch_s = 0.5;    // on the wall, of one search
constexpr double kEnough = 1.3;      // times the load with headroom: no better plan is looked for
const LatencyLimits kScaleLimits = {.ttft_s = 10, .tpot_s = 0.5, .attainment = 0.9};
// Of the peak, by hour from midnight: an office day.
constexpr double kHours[] = {0.35, 0.3,  0.25, 0.25, 0.25, 0.3,  0.4,  0.55, 0.75, 0.9,  0.95, 1.0,
                             0.95, 0.95, 1.0,  1.0,  0.95, 0.85, 0.75, 0.65, 0.6,  0.55, 0.5,  0.4};

struct Kind {
  const char* name;
  int count;
  const char* device;
  int devices;
  int memory_gb;
  double usd_per_hour;  // on demand, of AWS
  const char* trace;
  double unit_s;  // of a trace of counts
};
const Kind kKinds[] = {
    {"p3", 32, "v100-16gb", 1, 16, 3.06, "parcae/p3_events.csv", 1},
    {"g4", 16, "t4", 4, 16, 3.912, "spotserve/g4dn_12h_full.csv", 1},
    // The trace is of p2.xlarge, whose device is not in the catalogue.
    {"g6", 16, "l4", 1, 24, 0.805, "bamboo/p2-xlarge-2020-11-20-to-2020-11-23.csv", 3600},
};

std::string ScaleCluster(double price) {
  std::string text = "name: sixty-four\nnodes:\n";
  for (const Kind& kind : kKinds) {
    text += fmt::format(
        "  - {{name: {}, count: {}, device: {}, devices: {}, memory: {} GB, price: {:.4f} USD/h, "
        "spot: true}}\n",
        kind.name, kind.count, kind.device, kind.devices, kind.memory_gb,
        kind.usd_per_hour * price);
  }
  return text + "links:\n  within_region: {bandwidth: 10 Gbit/s, latency: 0.2 ms}\n";
}

// How many machines there are from each moment on, over a day. A shorter trace runs back again.
std::vector<std::pair<double, int>> CountsOfDay(const sim::AvailabilityTrace& trace) {
  std::vector<std::pair<double, int>> counts = {{0, 0}};
  int alive = 0;
  for (const sim::AvailabilityEvent& event : trace.events) {
    if (event.kind == sim::AvailabilityKind::kLoad || event.at_s > kDay_s) continue;
    const auto nodes = static_cast<int>(event.nodes.size());
    alive += event.kind == sim::AvailabilityKind::kAdd ? nodes : -nodes;
    if (counts.back().first == event.at_s) counts.pop_back();
    counts.emplace_back(event.at_s, alive);
  }
  const double end_s = counts.back().first;
  for (size_t i = counts.size() - 1; i > 0; --i) {
    const double back_s = 2 * end_s - counts[i].first;
    if (back_s > end_s && back_s <= kDay_s) counts.emplace_back(back_s, counts[i - 1].second);
  }
  return counts;
}

// Which machines are there when, in the day that is simulated.
class Fleet {
 public:
  static Result<Fleet> Load(const std::string& data, double faster) {
    Fleet fleet;
    int first = 0;
    for (const Kind& kind : kKinds) {
      MR_ASSIGN_OR_RETURN(const std::string text,
                          ReadFile(data + "/spot/" + kind.trace, sim::kAvailabilityBytesMax));
      MR_ASSIGN_OR_RETURN(const auto published, sim::ParseAvailability(text, kind.unit_s));
      std::string day = "0,0\n";
      for (const auto& [at_s, count] : CountsOfDay(published)) {
        day += fmt::format("{:.3f},{}\n", at_s / faster, std::min(count, kind.count));
      }
      MR_ASSIGN_OR_RETURN(const auto trace, sim::ParseAvailability(day));
      for (sim::MembershipChange change :
           sim::MembershipOf(trace, {.instances = kind.count,
                                    .notice_s = kNotice_s / faster,
                                    .load_s = kScaleLoad_s / faster})) {
        change.instance += first;
        fleet.changes_.push_back(change);
      }
      first += kind.count;
    }
    std::ranges::stable_sort(fleet.changes_, {}, &sim::MembershipChange::at);
    return fleet;
  }

  const std::vector<sim::MembershipChange>& changes() const { return changes_; }

  // By node: whether its machine is there from `from_s` to `to_s` without a break.
  std::vector<bool> Here(size_t nodes, double from_s, double to_s) const {
    std::vector<bool> here(nodes);
    for (const sim::MembershipChange& change : changes_) {
      const double at_s = (change.at - Time{}).seconds();
      if (at_s > to_s) break;
      const auto node = static_cast<size_t>(change.instance);
      if (change.what == What::kCame && at_s <= from_s) here[node] = true;
      if (change.what == What::kLost) here[node] = false;
    }
    return here;
  }

 private:
  std::vector<sim::MembershipChange> changes_;  // by time
};

class Day {
 public:
  explicit Day(const Context& context)
      : context_(context), faster_(context.quick ? 144 : 4), day_s_(kDay_s / faster_) {}

  Result<std::vector<Figure>> Run() {
    MR_ASSIGN_OR_RETURN(fleet_, Fleet::Load(context_.data, faster_));
    MR_ASSIGN_OR_RETURN(const apps::SimulatedSearch spot, Search(kSpotPrice));
    MR_ASSIGN_OR_RETURN(const apps::SimulatedSearch on_demand, Search(1));
    for (const NodeSpec& node : spot.cluster().nodes) names_.push_back(node.name);
    MR_ASSIGN_OR_RETURN(const Found all, BestPlan(spot, kPeak, names_));
    Tell(fmt::format("all 64 machines answer {:.3g} requests/s", all.requests_per_s));
    std::vector<Figure> figures;
    figures.push_back({.name = "peak of the load", .ours = kPeak, .unit = "requests/s"});
    MR_RETURN_IF_ERROR(AddOnDemand(on_demand, figures));
    const PilotSetup setup = SetupOf(spot);
    MR_ASSIGN_OR_RETURN(const Found first, BestPlan(spot, HourlyRate(0), NamesAt(0, 0)));
    const cluster::AutopilotOptions options{.mode = cluster::AutopilotMode::kAct,
                                            .limits = kScaleLimits};
    MR_RETURN_IF_ERROR(
        AddRun("spot, autopilot", setup, first.plan, {.autopilot = options}, figures));
    MR_ASSIGN_OR_RETURN(const Policy oracle, Oracle(spot));
    MR_RETURN_IF_ERROR(AddRun("spot, oracle", setup, first.plan, oracle, figures));
    MR_RETURN_IF_ERROR(AddRun("spot, one plan for all 64 machines", setup, all.plan, {}, figures));
    return figures;
  }

 private:
  struct Found {
    Plan plan;
    double requests_per_s = 0;
  };

  Result<apps::SimulatedSearch> Search(double price) const {
    apps::PlanInputFlags flags;
    flags.live = "the 64 machines";
    flags.live_text = ScaleCluster(price);
    flags.model = kScaleModel;
    return apps::SimulatedSearch::Load(std::move(flags), {.limits = kScaleLimits,
                                                          .clock = &clock_,
                                                          .time_limit_s = kSearch_s,
                                                          .effort = kEffort,
                                                          .enough = kEnough});
  }

  sim::WorkloadSpec LoadOf(double rate) const {
    sim::WorkloadSpec spec;
    spec.rate = rate;
    spec.duration_s = day_s_;
    spec.prompt = {.kind = sim::LengthSpec::Kind::kLognormal, .a = 763, .b = 500, .limit = 3000};
    spec.output = {.kind = sim::LengthSpec::Kind::kLognormal, .a = 232, .b = 200, .limit = 1000};
    spec.limits = kScaleLimits;
    return spec;
  }

  double HourlyRate(double at_s) const {
    return kPeak * kHours[static_cast<size_t>(at_s / day_s_ * 24) % 24];
  }

  PilotSetup SetupOf(const apps::SimulatedSearch& search) const {
    PilotSetup setup{.search = &search, .workload = LoadOf(1)};
    double mean = 0;
    const std::vector<double> hours(std::begin(kHours), std::end(kHours));
    setup.workload.shape = *sim::ShapeOf(hours, day_s_ / 24, mean);
    setup.workload.rate = mean * kPeak;
    setup.load_time = Duration::Seconds(kScaleLoad_s / faster_);
    setup.membership = fleet_.changes();
    setup.window_s = day_s_ / 24;
    return setup;
  }

  Result<Found> BestPlan(const apps::SimulatedSearch& search, double rate,
                         const std::vector<std::string>& nodes) {
    const cluster::SearchAnswer answer =
        search.PlansFor(apps::OrderAtStart(LoadOf(rate), 1), nodes);
    MR_RETURN_IF_ERROR(answer.status);
    const cluster::PlanForecast& best = answer.found.front();
    return Found{search.OnCluster(*best.plan), best.requests_per_s};
  }

  // Those that are there from then on, long enough for a plan.
  std::vector<std::string> NamesAt(double at_s, double for_s) const {
    const std::vector<bool> here = fleet_.Here(names_.size(), at_s, at_s + for_s);
    std::vector<std::string> names;
    for (size_t i = 0; i < here.size(); ++i) {
      if (here[i]) names.push_back(names_[i]);
    }
    return names;
  }

  // The fewest machines, the cheapest kinds first, that carry the peak with the autopilot's
  // headroom.
  Status AddOnDemand(const apps::SimulatedSearch& search, std::vector<Figure>& figures) {
    constexpr int kStep = 8;
    std::vector<std::string> cheapest(names_.rbegin(), names_.rend());
    const double wanted = kPeak * cluster::AutopilotOptions().headroom;
    for (size_t count = kStep; count <= cheapest.size(); count += kStep) {
      Tell(fmt::format("on demand: a plan for {} machines", count));
      const std::vector<std::string> some(cheapest.begin(),
                                          cheapest.begin() + static_cast<int64_t>(count));
      auto found = BestPlan(search, wanted, some);
      if (!found.ok() || found->requests_per_s < wanted) continue;
      PilotSetup setup = SetupOf(search);
      setup.membership.clear();
      for (size_t i = 0; i < names_.size(); ++i) {
        if (std::ranges::find(some, names_[i]) == some.end()) continue;
        setup.membership.push_back({Time{}, static_cast<int>(i), 0, What::kCame});
        setup.membership.push_back({Time{}, static_cast<int>(i), 0, What::kReady});
      }
      return AddRun(fmt::format("on demand, {} machines for the peak", count), setup, found->plan,
                    {}, figures);
    }
    return FailedPrecondition("64 machines on demand do not carry the peak");
  }

  // A plan for every hour: for the machines that will be there throughout.
  Result<Policy> Oracle(const apps::SimulatedSearch& search) {
    Policy policy;
    for (double at_s = 0; at_s < day_s_; at_s += day_s_ / 24) {
      const std::vector<std::string> names = NamesAt(at_s, day_s_ / 24 + kScaleLoad_s / faster_);
      const double rate = HourlyRate(at_s);
      Tell(fmt::format("oracle: a plan for {:.0f} s", at_s));
      auto found = BestPlan(search, rate * cluster::AutopilotOptions().headroom, names);
      if (found.ok())
        policy.schedule.push_back({Time{} + Duration::Seconds(at_s), std::move(found->plan)});
    }
    return policy;
  }

  Status AddRun(const std::string& name, PilotSetup setup, const Plan& first, const Policy& policy,
                std::vector<Figure>& figures) {
    Tell(name);
    int told = -1;
    setup.limit_s = kRunLimit_s;
    setup.progress = [&](Time now) {
      const int hour = static_cast<int>((now - Time{}).seconds() / day_s_ * 24);
      if (hour != std::exchange(told, hour)) Tell(fmt::format("  {}: hour {}", name, hour));
    };
    MR_ASSIGN_OR_RETURN(const PilotRun run, RunPilot(setup, first, policy));
    const double hours = run.simulated_s / 3600,
                 good_per_s = static_cast<double>(run.good) / run.simulated_s;
    Figure figure{.name = name, .ours = good_per_s, .unit = "good answers/s"};
    figure.verdict = fmt::format(
        "{:.1f} % of {} requests, {:.2f} USD/h, {:.3f} USD per 1,000 good answers, {} changes, {} "
        "searches, {} refused, "
        "{:.0f} s to simulate{}",
        100 * run.share(), run.requests, run.usd / hours,
        1000 * run.usd / static_cast<double>(run.good), run.changes, run.searches, run.refused,
        run.took_s, run.stopped ? ", ended early" : "");
    figure.more = {{"share", run.share()},
                   {"requests", run.requests},
                   {"usd_per_hour", run.usd / hours},
                   {"changes", run.changes},
                   {"searches", run.searches},
                   {"refused", run.refused},
                   {"seconds_to_simulate", run.took_s}};
    for (const PilotRun::Window& hour : run.windows)
      figure.more["share_by_hour"].push_back(hour.share());
    for (const cluster::Decision& decision : run.decisions) {
      figure.more["decisions"].push_back(cluster::DecisionLine(decision));
    }
    Tell(fmt::format("  {:.3g} good answers/s, {}", good_per_s, figure.verdict));
    figures.push_back(std::move(figure));
    return OkStatus();
  }

  void Tell(const std::string& what) const {
    if (context_.progress) fmt::print(stderr, "{}\n", what);
  }

  const Context& context_;
  const SteadyClock clock_;
  const double faster_, day_s_;
  Fleet fleet_;
  std::vector<std::string> names_;
};

Result<std::vector<Figure>> RunScale(const Context& context) { return Day(context).Run(); }

}  // namespace

Experiment AutopilotScaleExperiment() {
  return {.name = "autopilot_scale",
          .title = "Autopilot: 64 unlike spot machines over a day of clouds' traces",
          .run = RunScale};
}

}  // namespace millrace::experiments
