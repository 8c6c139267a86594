// The simulator behind SimulateSpot: events, dispatch, and the reactions of the four systems.
// Private to this folder; one thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "experiments/lib/spotserve/fleet.h"
#include "experiments/lib/spotserve/spot_sim.h"
#include "plan/spot/arrange.h"
#include "plan/spot/rate_meter.h"
#include "sim/machines/event_queue.h"

namespace millrace::experiments::spotserve {

class Simulator {
 public:
  Simulator(const SpotModel& model, const SpotCloud& cloud, const sim::AvailabilityTrace& trace,
            std::span<const double> arrivals_s, const SpotOptions& options);
  Result<SpotReport> Run();

 private:
  enum class EventKind : uint8_t { kArrival, kPipeline, kNotice, kEffect, kStop, kReady, kTick };
  struct Event {
    EventKind kind;
    int64_t a = 0;  // request, pipeline, trace event, or the change's number
  };

  // A pipeline and where it runs.
  struct Serving {
    std::unique_ptr<Pipeline> engine;
    int data = 0;                   // its number in the configuration
    std::vector<int> nodes;         // ascending
    std::optional<double> wakes_s;  // the event that is scheduled for it
    bool closing = false;           // stops for the current change
    bool stopped = false;           // has stopped for it
    bool limited = false;           // its batch ends early
    double notice_s = 0;            // when it began to close
    double estimate_s = 0;          // time that closing must leave
    bool preemption = true;         // machines are lost; false: they are awaited
  };

  enum class Phase : uint8_t { kSteady, kStopping, kMoving };

  // A change of configuration in progress.
  struct Change {
    int64_t number = 0;
    std::optional<plan::spot::ParallelConfig> target;
    bool preemption = false;
    double deadline_s = 0;                    // when the first machine dies
    double await_s = 0;                       // when new machines can be used
    double estimate_s = 0;                    // T_mig
    double stop_s = 0;                        // kMillrace: when pipelines are cut
    double copied_s = 0;                      // kMillrace: when weights have reached empty machines
    bool only_adds = false;                   // nothing stops
    std::map<int, std::vector<int>> batches;  // with KV, by old pipeline number
    std::map<int, std::vector<int>> inherits;  // with KV, by new pipeline number
    std::map<int64_t, int> kept;  // pipelines that continue through it, with their new numbers
    std::vector<int> nodes;       // every machine involved
    // What each of them holds afterwards, by device.
    std::vector<std::vector<std::optional<Position>>> places;
  };

  // Events.
  void Handle(const Event& event);
  void Notice(const sim::AvailabilityEvent& event);
  void Effect(const sim::AvailabilityEvent& event);
  void Push(double at_s, EventKind kind, int64_t a);
  void Wake(int64_t pipeline);

  // Serving (dispatch.cc).
  void AdvancePipeline(int64_t id);
  void Dispatch();
  bool FillPipeline(int64_t id, Serving& serving);
  int StepsAllowed(const Serving& serving, int batch) const;
  void Return(const std::vector<int>& requests);
  void Settle(Serving& serving, const std::vector<Stopped>& stopped);
  void Kill(int64_t id);
  bool AllDone() const;

  // Changes (change.cc).
  void Reconsider();
  std::optional<plan::spot::ParallelConfig> Choose(int devices);
  bool Needed(const plan::spot::ParallelConfig& target) const;
  void BeginChange(const plan::spot::ParallelConfig& target);
  void Close(Serving& serving, double estimate_s, bool preemption);
  void PlanStop();
  void CheckAllStopped();
  void StopNow();
  bool AbandonChange();
  void Ready();
  void Serve(int data, std::vector<int> nodes);

  // The transfers of the change (moving.cc).
  struct Moving {
    MapRequest request;
    std::vector<int> nodes;  // by instance of the request
    Mapping mapping;
    Migration migration;
  };
  Moving MapChange(const plan::spot::ParallelConfig& target,
                   const std::map<int, std::vector<int>>& batches) const;
  std::map<int64_t, int> Untouched(const Moving& moving) const;
  double Seconds(const Moving& moving, bool kv, bool to_used, bool to_empty) const;
  double StorageSeconds(const Moving& moving) const;
  void Move();
  void GiveUp();
  void MoveWithoutKv();
  void MoveWithKv();
  void ChooseCopies();
  void Inherit(const Moving& moving, double kv_arrives_s);

  // Rerouting (rerouting.cc): pipelines come and go one by one.
  void ChooseForRerouting();
  void ConsiderRerouting();
  void DropStopped();
  void FillRerouting();
  void ReadyRerouting(int64_t id);

  // Helpers.
  std::unique_ptr<Pipeline> MakeEngine() const;
  int Remaining(int request) const { return model_.space.output_tokens - requests_[request].done; }
  bool KeepsProgress() const { return options_.system == System::kMillrace; }
  int InstancesNeeded() const;
  SpotReport Report();

  const SpotModel& model_;
  const SpotCloud& cloud_;
  const sim::AvailabilityTrace& trace_;
  const SpotOptions& options_;
  RequestLengths lengths_;

  sim::EventQueue<Event> events_;
  double now_s_ = 0;
  std::vector<RequestState> requests_;
  std::set<int> queue_;  // by arrival
  Fleet fleet_;
  double required_per_s_ = 0;
  plan::spot::RateMeter meter_;
  RegretRule controller_;

  std::optional<plan::spot::ParallelConfig> config_;
  std::map<int64_t, Serving> pipelines_;
  int64_t next_id_ = 0;
  Phase phase_ = Phase::kSteady;
  Change change_;
  bool dirty_ = false;                  // an event occurred during a change
  std::map<int64_t, Serving> loading_;  // kRerouting: pipelines being loaded
  SpotReport report_;
};

}  // namespace millrace::experiments::spotserve
