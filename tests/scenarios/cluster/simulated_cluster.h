// SimulatedCluster: a real ControllerCore, scripted workers and clients in virtual time. Workers
// answer each message after a fixed time, unless the script holds the answers back or lets them
// fail. Everything that the controller sends and delivers becomes a line of the transcript.
//
// The token at position i of a sequence is i, so the output of a request with a prompt of 5 tokens
// is 5, 6, 7 ... A token that is delivered twice, or left out, is marked in the transcript.
//
// Owned by a cluster scenario; one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/control/controller_core.h"
#include "tests/scenarios/cluster/message_text.h"

namespace millrace::cluster {

// Which answers of a worker: to loads, to opened pipelines, to steps, to pulls.
enum class Answers : uint8_t { kLoads, kOpens, kSteps, kPulls };

// How long workers take.
struct WorkerTimes {
  Duration load = Duration::Seconds(1);
  Duration load_again = Duration::Millis(10);  // of layers that the worker holds already
  Duration open = Duration::Millis(10);
  Duration step = Duration::Millis(100);  // at each hop
  Duration pull = Duration::Millis(50);
};

struct SimulatedWorker {
  std::string announced;    // the name in its Join; empty: the script's name for it
  int64_t kv_tokens = 256;  // that fit beside any weights
  std::string numeric_class;
};

struct SimulatedRequest {
  int prompt_tokens = 1;
  int n = 1;
  std::optional<int> max_tokens;
};

class SimulatedCluster {
 public:
  // Creates the first controller. `transcript` receives lines.
  static Result<std::unique_ptr<SimulatedCluster>> Create(ControllerOptions options,
                                                          WorkerTimes times,
                                                          std::vector<std::string>& transcript);

  // Events.
  void Join(const std::string& worker, const SimulatedWorker& facts);  // a new process
  void Reconnect(const std::string& worker);  // the process joins again, with its weights
  void Lose(const std::string& worker, const std::string& reason);
  void Notify(const std::string& worker, ToController notice);  // Leaving, MayLeave, Staying
  void Silence(const std::string& worker, bool silent);         // no heartbeats
  void Hold(const std::string& worker, Answers what);
  void EndHold(const std::string& worker, Answers what);
  void Fail(const std::string& worker, Answers what, const std::string& reason);
  void EndFail(const std::string& worker, Answers what);
  // The worker reports that the pipeline is broken, perhaps because of worker `suspect`.
  void Break(const std::string& pipeline, const std::string& worker, const std::string& suspect,
             const std::string& reason);
  void Submit(const std::string& name, const SimulatedRequest& request);
  void Abort(const std::string& name);
  void Drain(const std::string& worker);
  void Migrate(const std::string& request, const std::string& worker);
  void ApplyPlan(Plan plan);
  // The controller is gone. Another one continues its requests, and the workers join it.
  void TakeOver();

  // Lets time pass.
  void RunFor(Duration time);
  // Until no request is left, for a minute at most.
  void RunToEnd();
  // Until the request has that many tokens, for a minute at most.
  void RunUntil(const std::string& request, size_t tokens);

  void SayStatus();
  void SayCounters();

 private:
  struct Worker {
    std::string name;
    uint64_t incarnation = 0;
    ConnectionId connection;
    bool connected = false, silent = false, leaving = false;
    SimulatedWorker facts;
    uint64_t beats = 0, steps_done = 0;
    Time busy_until;                 // with the steps that it has received
    std::optional<Time> held_since;  // when it held back the first answer to a step
    std::map<ShardId, HeldShard> shards;
    std::set<ShardId> loaded;
    std::vector<HeldShard> kept;  // loaded in earlier sessions
    std::set<PipelineId> pipelines;
    std::set<uint64_t> exported;  // generations
    std::set<Answers> holds;
    std::map<Answers, std::string> fails;
    std::vector<std::pair<Answers, std::function<void()>>> held_back;
  };
  struct Client {
    std::string name;
    std::shared_ptr<const std::vector<TokenId>> prompt;
    std::shared_ptr<const SamplingParams> params;
    Time arrived;
    std::vector<sched::ResumedSequence> delivered;
    std::string fingerprint;  // of its newest token
    size_t ended = 0;         // sequences
    bool over() const { return ended == delivered.size(); }
  };

  SimulatedCluster(ControllerOptions options, WorkerTimes times,
                   std::vector<std::string>& transcript)
      : options_(std::move(options)), times_(times), transcript_(transcript) {}
  void Say(const std::string& line);
  void SayIfRefused(const Status& status);
  void SayOutput(const RequestOutput& output);
  Worker* ByName(const std::string& name);  // says so if it is not connected
  Worker* ByConnection(ConnectionId connection);
  Worker* ByAddress(const WorkerAddress& address);
  Client* FindClient(const std::string& name);
  void RunEvents(Time until, const std::function<bool()>& stop);
  void Beat();
  void Settle();
  void StartSession(Worker& worker);
  void EndSession(Worker& worker);
  void SubmitToController(Client& client, sched::NewRequest request);

  // Workers.
  void Take(const std::vector<ControllerAction>& actions);
  void Do(Worker& worker, const LoadShard& message);
  void Do(Worker& worker, const UnloadShard& message);
  void Do(Worker& worker, const OpenPipeline& message);
  void Do(Worker& worker, const ClosePipeline& message);
  void Do(Worker& worker, const PipelineStep& message);
  void Do(Worker& worker, const ExportKv& message);
  void Do(Worker& worker, const ReleaseKv& message);
  void Do(Worker& worker, const PullKv& message);
  void Do(Worker&, const Welcome&) {}
  void Do(Worker&, const Refused&) {}
  void Do(Worker&, const ReturnBlocks&) {}
  void Do(Worker&, const ProbeLink&) {}   // its controller asks for none
  void Do(Worker&, const TokenTable&) {}  // nor has it a tokenizer
  void Do(Worker& worker, const Leave& message);
  // Runs `answer` after that time, if the worker's session still exists and the script does not
  // hold it back.
  void Answer(Worker& worker, Answers what, Duration after, std::function<void()> answer);
  void EndLoad(Worker& worker, ShardId shard);
  void EndStep(const PipelineStep& step);
  void EndPull(Worker& worker, const PullKv& pull);
  Status PullStatus(Worker& worker, const PullKv& pull);
  void HoldBack(Worker& worker, Answers what, std::function<void()> answer);

  ControllerOptions options_;
  const WorkerTimes times_;
  std::vector<std::string>& transcript_;
  MessageText text_;
  std::unique_ptr<ControllerCore> controller_;
  Time now_;
  std::multimap<Time, std::function<void()>> events_;
  Time next_beat_;
  std::map<std::string, std::string> classes_;  // numeric classes by fingerprint
  std::map<std::string, Worker> workers_;
  std::map<PipelineId, std::vector<PipelineHop>> hops_;
  std::map<RequestId, Client> clients_;
  uint64_t last_connection_ = 0, last_incarnation_ = 0;
};

}  // namespace millrace::cluster
