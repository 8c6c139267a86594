// Live migration: the effect on a client when its stream moves to another worker with its KV.
//
//   build/release/bench/migration [--contexts 1024,4096,8192] [--repeats 5] [--layers 16] ...
//
// Method: a controller and two worker processes over loopback TCP. Each worker has the whole model
// (random weights; by default the layers of Llama 3.2 1B, 2 GB) and one thread. One greedy stream
// per context is moved back and forth while it decodes. A time between two tokens is the time
// between two calls of the sink from which the front end would write to the client. "Step" is the
// median of such times before a move; "longest gap" is the longest of them from the migration
// request until three tokens after the move has ended. For a machine with other load, "undisturbed"
// is the longest of as many tokens before the request. There is no prefix cache, so every move
// carries the whole context. Target: the longest gap is at most two steps and 50 ms, and that of
// the longest context at most 20 % above the shortest's.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/statistics.h"
#include "bench/cluster_rig.h"
#include "bench/machine.h"

namespace millrace::bench {
namespace {

struct Options {
  std::vector<int> contexts = {1024, 4096, 8192};
  int repeats = 5;
  int layers = 16, hidden = 2048, heads = 32, kv_heads = 8, intermediate = 8192;
  std::string models = "/tmp/millrace-bench";
};

constexpr int kOutputMax = 8192;
constexpr size_t kCalmTokens = 60;  // minimum between moves
constexpr double kAllowedMillis = 50;

struct Child {
  std::string name;
  pid_t process = 0;
  int port_pipe = -1;  // receives the controller's port
};

// REQUIRES: no other threads yet.
Child Fork(const std::string& name, const RigModel& model, int64_t kv_bytes, int max_model_len) {
  int ends[2];
  MR_CHECK(pipe(ends) == 0) << "no pipe";
  const pid_t parent = getpid();
  const pid_t process = fork();
  MR_CHECK(process >= 0) << "no process";
  if (process > 0) {
    close(ends[0]);
    return {name, process, ends[1]};
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  close(ends[1]);
  int port = 0;
  if (getppid() != parent || read(ends[0], &port, sizeof port) != sizeof port) _exit(1);
  const SteadyClock clock;
  auto worker = Must(cluster::WorkerProcess::Start(
      WorkerOptionsFor(model, name, port, kv_bytes, max_model_len), clock));
  const Status ended = worker->Run();
  fmt::print(stderr, "{} has ended: {}\n", name, ended.ToString());
  _exit(1);
}

// Two stages with the whole model each.
Plan WholeModelTwice(int layers) {
  Plan plan;
  plan.model = "rig";
  plan.num_layers = layers;
  plan.tokens_per_s = plan.tokens_per_s_bound = 2;
  for (int i = 0; i < 2; ++i) {
    plan.stages.push_back({.nodes = {i}, .layers = {0, layers}});
    plan.edges.push_back({std::nullopt, i, 1});
    plan.edges.push_back({i, std::nullopt, 1});
  }
  return plan;
}

struct Move {
  double step_ms = 0, gap_ms = 0, calm_ms = 0, seconds = 0, bytes_per_context = 0;
};

class Bench {
 public:
  Bench(const Options& options, const RigModel& model, std::vector<Child> children)
      : options_(options), model_(model), children_(std::move(children)) {
    const int longest = *std::ranges::max_element(options.contexts) + kOutputMax;
    cluster::ControllerHostOptions host =
        ControllerOptionsFor(model, WholeModelTwice(model.spec.num_layers), 4, longest);
    for (const Child& child : children_) host.controller.node_names.push_back(child.name);
    server_ =
        Must(cluster::ControllerProcess::Start(std::move(host), ServerOptionsForRig(), clock_));
    const int port = server_->port();
    for (const Child& child : children_) {
      MR_CHECK(write(child.port_pipe, &port, sizeof port) == sizeof port) << "a worker has exited";
    }
    // Opens a pipeline to each of them.
    Stream one(server_->host(), model, 16, 64, 1), other(server_->host(), model, 16, 64, 2);
    one.WaitFor(32);
    other.WaitFor(32);
  }
  ~Bench() {
    server_.reset();
    for (const Child& child : children_) {
      kill(child.process, SIGKILL);
      waitpid(child.process, nullptr, 0);
    }
  }

  std::vector<Move> Run(int context) {
    Stream stream(server_->host(), model_, context, kOutputMax, 100);
    size_t calm = kCalmTokens;
    std::vector<Move> moves;
    for (int i = 0; i <= options_.repeats; ++i) {
      stream.WaitFor(stream.tokens() + calm);
      const Move move = MoveOnce(stream, context, calm);
      if (i > 0) moves.push_back(move);  // the first one touches the memory it moves to
    }
    return moves;
  }

 private:
  std::string Where() const {
    for (const cluster::PipelineStatus& pipeline : server_->host().Describe().pipelines) {
      if (pipeline.requests > 0) return pipeline.workers.front();
    }
    MR_CHECK(false) << "no pipeline holds the stream";
    return "";
  }

  // `calm`: the number of tokens that the next move waits for.
  Move MoveOnce(const Stream& stream, int context, size_t& calm) {
    const std::string here = Where();
    const auto to = std::ranges::find_if(children_, [&](const Child& c) { return c.name != here; });
    const cluster::ControllerCounters before = server_->host().Describe().counters;
    const size_t first = stream.tokens();
    const double begin = Now(Clock::kWall);
    const Status ordered = server_->host().Migrate(stream.id(), to->name);
    MR_CHECK(ordered.ok()) << ordered.ToString();
    while (server_->host().Describe().moving > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const double end = Now(Clock::kWall);
    const size_t last = stream.tokens() + 3;
    stream.WaitFor(last + 1);
    const cluster::ControllerCounters after = server_->host().Describe().counters;
    MR_CHECK(after.moves_failed == before.moves_failed && after.replays == before.replays)
        << "the KV did not move";
    MR_CHECK(Where() == to->name) << "the stream did not move";
    const std::vector<double> times = stream.times();
    const size_t length = last - first + 1;
    calm = std::max(kCalmTokens, length + 8);
    const auto longest = [&](size_t from, size_t until) {
      return std::ranges::max(Gaps(times, from, until)) * 1e3;
    };
    // A token in flight at the request counts to the move.
    Move move;
    move.step_ms = Median(Gaps(times, first - kCalmTokens / 2, first - 1)) * 1e3;
    move.gap_ms = longest(first - 1, last);
    move.calm_ms = longest(first - 1 - std::min(length, first - 1), first - 1);
    move.seconds = end - begin;
    const double kv_bytes = (static_cast<double>(context) + static_cast<double>(last)) *
                            static_cast<double>(model_.spec.KvBytesPerToken());
    move.bytes_per_context = static_cast<double>(after.moved_bytes - before.moved_bytes) / kv_bytes;
    return move;
  }

  const Options& options_;
  const RigModel& model_;
  const std::vector<Child> children_;
  const SteadyClock clock_;
  std::unique_ptr<cluster::ControllerProcess> server_;
};

double MedianOf(const std::vector<Move>& moves, double Move::*field) {
  std::vector<double> values;
  for (const Move& move : moves) values.push_back(move.*field);
  return Median(values);
}

void Run(const Options& options) {
  const int longest = *std::ranges::max_element(options.contexts) + kOutputMax;
  const RigModel model = MakeRigModel(options.models, {.layers = options.layers,
                                                       .hidden = options.hidden,
                                                       .heads = options.heads,
                                                       .kv_heads = options.kv_heads,
                                                       .intermediate = options.intermediate,
                                                       .positions = longest});
  const int64_t kv_bytes = model.spec.KvBytesPerToken() * 2 * longest;
  std::vector<Child> children;
  for (const char* name : {"one", "other"}) {
    children.push_back(Fork(name, model, kv_bytes, longest));
  }
  Bench bench(options, model, std::move(children));
  fmt::print(
      "Method: two worker processes over loopback TCP, one thread each; {} layers, hidden size {}, "
      "{} KV\nheads, bf16, {:.1f} KB of KV per token; one greedy stream, {} moves per context to "
      "and fro, medians\n(longest gap: and the worst of them).\n\n",
      model.spec.num_layers, model.spec.hidden_size, model.spec.num_kv_heads,
      static_cast<double>(model.spec.KvBytesPerToken()) / 1e3, options.repeats);
  fmt::print(
      "| context | step | longest gap | worst | gap - 2 steps | undisturbed | move took | bytes "
      "to context's KV |\n|---|---|---|---|---|---|---|---|\n");
  std::vector<double> gaps;
  for (int context : options.contexts) {
    const std::vector<Move> moves = bench.Run(context);
    const double step = MedianOf(moves, &Move::step_ms), gap = MedianOf(moves, &Move::gap_ms);
    gaps.push_back(gap);
    fmt::print(
        "| {} | {:.1f} ms | {:.1f} ms | {:.1f} ms | {:.1f} ms | {:.1f} ms | {:.2f} s | {:.3f} |\n",
        context, step, gap, std::ranges::max(moves, {}, &Move::gap_ms).gap_ms, gap - 2 * step,
        MedianOf(moves, &Move::calm_ms), MedianOf(moves, &Move::seconds),
        MedianOf(moves, &Move::bytes_per_context));
  }
  fmt::print("\nTarget: gap - 2 steps at most {} ms. Gap at context {} to that at {}: {:.2f}\n",
             kAllowedMillis, options.contexts.back(), options.contexts.front(),
             gaps.back() / gaps.front());
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::Options options;
  CLI::App app{"The gap that a live migration leaves in a stream"};
  app.add_option("--contexts", options.contexts, "Tokens of context, shortest first")
      ->delimiter(',')
      ->check(CLI::Range(64, 1 << 20));
  app.add_option("--repeats", options.repeats, "Moves per context")->check(CLI::Range(1, 50));
  app.add_option("--layers", options.layers, "Layers of the model")->check(CLI::Range(1, 256));
  app.add_option("--hidden", options.hidden, "Hidden size")->check(CLI::Range(64, 16384));
  app.add_option("--heads", options.heads, "Attention heads")->check(CLI::Range(1, 256));
  app.add_option("--kv-heads", options.kv_heads, "KV heads")->check(CLI::Range(1, 256));
  app.add_option("--intermediate", options.intermediate, "Width of the MLP")
      ->check(CLI::Range(64, 65536));
  app.add_option("--models", options.models, "Where the random models are made and kept");
  CLI11_PARSE(app, argc, argv);
  if (!millrace::InitLog("warn").ok()) return 1;
  millrace::bench::Run(options);
  return 0;
}
