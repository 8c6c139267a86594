// Cell: the controller's body in a server: a Controller with a clock, a lock, and the sinks of
// those who asked. To a front end it is a Generator like an Engine.
//
// Messages are applied on the threads that bring them, under the lock, and what follows from them
// is sent at once: nobody on the way of a step waits for a thread to wake. News is handed to sinks
// by the cell's own thread, which also brings the time.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "cluster/controller.h"
#include "engine/generator.h"

namespace millrace::cluster {

// How the cell reaches workers. May be called from any thread, with the cell's lock held: they must
// not wait and not call back.
struct CellLinks {
  std::function<void(ConnectionId to, const ToWorker& message)> send;
  std::function<void(ConnectionId connection, const std::string& reason)> disconnect;
};

// What is to be on record before a client hears of it. May wait for a disk: called without the
// cell's lock, `accepted` by submitters one after the other in the order of the ids, `told` on the
// cell's thread. Where one fails the requests it was called for fail with its status.
struct CellJournal {
  std::function<Status(const sched::NewRequest& request, const engine::EngineRequest& asked)>
      accepted;
  std::function<Status(const std::vector<RequestOutput>& news)> told;
};

struct CellOptions {
  ControllerOptions controller;
  uint64_t seed = 0;           // for requests that bring none
  uint64_t first_request = 1;  // ids go on from here: above those of an earlier life
  CellJournal journal;         // empty functions: no journal
};

class Cell : public engine::Generator {
 public:
  // `clock` outlives the cell.
  static Result<std::unique_ptr<Cell>> Start(CellOptions options, CellLinks links,
                                             const Clock& clock);
  ~Cell() override;  // closes
  // Ends what runs and joins the thread. What workers say afterwards is ignored.
  void Close();

  // From workers; any thread.
  void Receive(ConnectionId from, ToController message);
  void Beat(ConnectionId from, const Heartbeat& beat);
  void ConnectionLost(ConnectionId connection, const Status& reason);

  Result<RequestId> Submit(engine::EngineRequest request, engine::OutputSink sink) override;
  void Abort(RequestId request, std::optional<int> index = {}) override;
  engine::EngineStats Stats() const override;
  std::optional<sched::RequestInfo> Inspect(RequestId request) const override;
  std::vector<sched::RequestInfo> InspectAll() const override;
  std::optional<std::string> NotReady() const override;
  bool Drain(Duration limit) override;

  // A request of an earlier life, from the journal.
  Status Resume(sched::NewRequest request, engine::OutputSink sink);

  // Operators; any thread.
  ClusterStatus Describe() const;
  Status ApplyPlan(Plan plan, std::vector<std::string> node_names);
  Status DrainWorker(std::string_view name);
  Status Migrate(RequestId request, std::string_view worker);

 private:
  // The lock while something changes; at its end what follows, then the cell's thread wakes.
  class Change {
   public:
    explicit Change(Cell& cell) : Change(cell, std::unique_lock(cell.mutex_)) {}
    Change(Cell& cell, std::unique_lock<std::mutex> lock) : cell_(cell), lock_(std::move(lock)) {}
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    Cell& cell_;
    std::unique_lock<std::mutex> lock_;
  };

  Cell(CellOptions options, CellLinks links, const Clock& clock);
  void Run();
  void Follow();  // with the lock, after every change: steps, messages, news
  void Deliver(std::unique_lock<std::mutex>& lock);
  void FailUnrecorded(const Status& why);
  void CountSteps();

  const CellOptions options_;
  const CellLinks links_;
  const Clock& clock_;

  std::mutex submitting_;  // taken before mutex_
  mutable std::mutex mutex_;
  std::condition_variable news_;            // outputs_ has something, or the cell stops
  std::condition_variable idle_;            // no request is left, and all is told
  std::unique_ptr<Controller> controller_;  // guarded by mutex_
  std::unordered_map<RequestId, engine::OutputSink> sinks_;  // guarded by mutex_
  std::vector<RequestOutput> outputs_;                       // guarded by mutex_
  std::vector<ControllerAction> actions_;                    // guarded by mutex_
  engine::EngineStats stats_;                                // guarded by mutex_
  uint64_t next_request_;                                    // guarded by mutex_
  bool draining_ = false;                                    // guarded by mutex_
  bool stopping_ = false;                                    // guarded by mutex_
  // Being told to the sinks, one by one: the cell's thread; filled and emptied under mutex_.
  std::vector<RequestOutput> delivering_;
  std::thread thread_;
};

}  // namespace millrace::cluster
