// Autopilot: decides when a running cluster should change to another plan. It watches the load, the
// workers and what clients get, asks for a search when something has changed, compares what the
// search found with the plan in force, and changes only if the gain over a horizon is worth more
// than the change delays. Afterwards it compares the forecast with what is measured, and goes back
// if the new plan does worse than promised and worse than the old one (DistServe section 4.3;
// SpotServe section 3.2; Helix section 5).
//
//            a cause              the best plan is better        in force
//   watching --------> searching -----------------------> changing --------> verifying --> watching
//                          |                                   |                 |
//                          +-- keep, or advise --> watching    +-- given up ->   +-- roll back
//
// Every decision is kept with its inputs. A return to the plan before the last change must wait
// longer each time, so a load that swings between two levels does not move the cluster with it.
//
// It knows no thread, socket or clock: the caller tells it what happens, runs the searches, and
// applies the plans that it asks for. Owned by AutopilotHost and by simulations. One thread at a
// time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/autopilot/decision.h"
#include "cluster/autopilot/load_meter.h"
#include "core/latency_limits.h"
#include "core/output.h"
#include "plan/distserve/distserve_replan.h"

namespace millrace::cluster {

enum class AutopilotMode : uint8_t { kAdvise, kAct };

struct AutopilotOptions {
  static constexpr size_t kDecisionsMax = 200;   // kept; older ones are forgotten
  static constexpr size_t kCandidatesKept = 10;  // of each decision
  static constexpr size_t kLengthsMax = 256;     // requests that a search gets as a sample

  AutopilotMode mode = AutopilotMode::kAdvise;
  LatencyLimits limits;  // what a good answer keeps; none: every answer is good

  // The load has shifted if so many windows in a row differ from those of the reference.
  Duration window = Duration::Seconds(10);
  int reference_windows = 3, confirm_windows = 2;
  int64_t requests_min = 10;  // with fewer, nothing is concluded from lengths or from answers
  Duration settle = Duration::Seconds(2);  // workers that come and go together cause one search

  // A plan is better if it answers this share more of the requests within the limits, at the load
  // times `headroom`, and the gain over the horizon is more than the requests that a change delays.
  double gain_min = 0.1, headroom = 1.2;
  Duration horizon = Duration::Seconds(600);
  Duration stall_guess = Duration::Seconds(2);  // of a change, until one was measured

  Duration dwell = Duration::Seconds(60);  // between changes that nothing forces
  int return_factor = 4;                   // each return to the plan before waits so much longer
  Duration dwell_max = Duration::Seconds(3600);

  // A change is verified over this time. It is taken back if the share of good answers is lower
  // than both the forecast and the share before by more than the margin.
  Duration verify = Duration::Seconds(30);
  double margin = 0.15;
};

// The cluster as the caller sees it.
struct AutopilotView {
  struct Member {
    std::string name;
    bool usable = true;
    bool leaving = false;  // drains, or has had notice
    bool operator==(const Member&) const = default;
  };
  int64_t epoch = 0;                       // of the plan in force
  bool changing = false;                   // another plan is being loaded
  std::string shape;                       // of the plan in force
  std::shared_ptr<const WorkerPlan> plan;  // in force; null: a stage lacks a worker
  bool serving = true;                     // requests can be answered
  std::vector<Member> members;             // by name
  std::optional<int64_t> given_up;         // the epoch of the plan that was given up last
  std::string given_up_reason;
  double unix_s = 0;  // the time of day, for people
};

struct StartSearch {
  uint64_t id = 0;
  MeasuredLoad load;
  double planned_requests_per_s = 0;    // with headroom
  std::vector<RequestLengths> lengths;  // of recent requests; empty: only the means are known
};
struct ApplyPlan {
  std::shared_ptr<const WorkerPlan> plan;
};
// To be logged and stored. The same id comes again when its outcome is known.
struct DecisionMade {
  Decision decision;
};
using AutopilotAction = std::variant<StartSearch, ApplyPlan, DecisionMade>;

struct SearchAnswer {
  Status status;
  std::optional<PlanForecast> current;  // nullopt: it serves nothing, or cannot be judged
  std::vector<PlanForecast> found;      // the best first; only the current if it carries the load
  double seconds = 0;
};

class Autopilot {
 public:
  // `decisions`: of earlier controllers, the oldest first.
  explicit Autopilot(const AutopilotOptions& options, std::vector<Decision> decisions = {});

  // Requests, as a front end sees them.
  void Arrived(RequestId id, int prompt_tokens, Time now);
  void Heard(const RequestOutput& output, Time now) { meter_.Heard(output, now); }

  // Call it about every second, and when something has changed.
  void Observe(const AutopilotView& view, Time now);
  // Answers a StartSearch; another id is ignored.
  void SearchEnded(uint64_t id, SearchAnswer answer, Time now);
  // Answers an ApplyPlan: the plan was accepted under this epoch, or was refused.
  void ApplyEnded(const Result<int64_t>& epoch);

  // What is to be done, in order.
  void TakeActions(std::vector<AutopilotAction>& actions);

  const std::deque<Decision>& decisions() const { return decisions_; }
  // The last one, if it advises a plan that still fits the workers. Null otherwise.
  const Decision* advice() const;
  std::string_view state() const;  // "watching", "searching", "changing", "verifying"
  MeasuredLoad RecentLoad(Time now) const;
  MeasuredService RecentService(Time now) const;

 private:
  enum class Phase : uint8_t { kWatching, kSearching, kChanging, kVerifying };
  struct Cause {
    DecisionCause cause = DecisionCause::kStart;
    std::string why;
    bool urgent = false;  // does not wait for the dwell
  };
  // A change that was ordered.
  struct Change {
    uint64_t decision = 0;
    std::optional<int64_t> epoch;  // once accepted
    std::string from_shape, to_shape;
    std::shared_ptr<const WorkerPlan> from_plan;
    std::vector<std::string> workers;  // of the new plan; empty: not known
    MeasuredLoad load;                 // that it was ordered for
    Time ordered, in_force, verify_at;
    bool rolls_back = false;
  };

  // autopilot_causes.cc: what calls for a search.
  void NoteMembers(const AutopilotView& view, Time now);
  void NoteShift(const std::optional<plan::ReplanReason>& shift, Time now);
  void NoteFirstLoad(Time now);
  void NoteLimits(Time now);
  void Want(Cause cause);
  bool AllMayServe(const std::vector<std::string>& workers) const;  // none: false
  void MaybeSearch(Time now);
  Time LoadSince(Time now) const;

  // autopilot.cc
  void FollowChange(Time now);
  void Verify(Time now);
  void PutInForce(Time now);
  void GivenUp(const std::string& why);
  void EndChange(std::string outcome);
  void Decide(const Cause& cause, Decision decision, Time now);
  void FoundNothing(Decision decision, std::string reason, Time now);
  // Why the cluster stays with its plan; nullopt: it should change.
  std::optional<std::string> WhyStay(const Cause& cause, Decision& decision, Time now);
  Duration DwellBefore(const PlanForecast& to, const MeasuredLoad& load) const;
  double ValueOf(const std::optional<PlanForecast>& plan, double requests_per_s) const;
  void Order(Change change, std::shared_ptr<const WorkerPlan> plan, Time now);
  void RollBack(const std::string& why, Time now);
  double GoodShare(const MeasuredService& service, const MeasuredLoad& load) const;
  double ForecastShare(const PlanForecast& plan, const MeasuredLoad& load) const;
  uint64_t Record(Decision decision);
  Decision* Find(uint64_t id);
  void Conclude(uint64_t id, std::string outcome);

  const AutopilotOptions options_;
  LoadMeter meter_;
  plan::ReplanTrigger shift_;
  std::deque<Decision> decisions_;
  std::vector<AutopilotAction> actions_;
  uint64_t last_decision_ = 0, last_search_ = 0;

  Phase phase_ = Phase::kWatching;
  std::optional<Time> started_;
  std::optional<AutopilotView> view_;
  std::optional<Time> members_changed_;
  std::optional<Time> idle_since_;  // nothing is served, although there are workers
  Time level_since_;                // the load has been as it is at least since then
  bool known_load_ = false;         // it was measured for the first time
  std::optional<Cause> wanted_;
  std::optional<Time> not_before_;  // of the next search that is not urgent
  std::optional<Time> retry_at_;    // the last search has failed; unset once the workers change
  std::optional<Time> limits_searched_;

  Cause searching_for_;  // while kSearching
  Decision searching_;   // its inputs

  std::optional<Change> change_;  // while kChanging and kVerifying
  std::optional<Time> last_change_;
  // Before the last change: the plan, and the load of the change before.
  std::string shape_before_;
  MeasuredLoad load_before_, load_now_;
  int returns_ = 0;
  std::set<std::string> worse_;    // shapes that did worse than the plan before, on these workers
  std::optional<Duration> stall_;  // the longest silence of the last change
};

}  // namespace millrace::cluster
