// The load of Helix's evaluation (ASPLOS'25, section 6.1): Azure's conversation lengths drawn at
// random. They arrive online (3-second bins of the trace, drawn at random and rescaled) or offline:
// as many at once as the caches hold, or a fixed number. It draws from Python's stream, like the
// original. One run; one thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "experiments/lib/helix/helix_simulator.h"
#include "experiments/lib/helix/python_random.h"

namespace millrace::experiments::helix {

struct HelixTrace {
  struct Length {
    int input_tokens = 0, output_tokens = 0;
  };
  std::vector<Length> lengths;
  std::vector<double> requests_per_bin;  // of 3 s

  double MeanTokens() const;
};

// `helix_data` is the folder with trace/.
Result<HelixTrace> LoadHelixTrace(const std::string& helix_data);

struct HelixArrival {
  double at_s = 0;
  HelixTrace::Length length;
};

// Arrivals over `duration_s`, starting at `begin_s`, with an average of `tokens_per_s` for prompt
// and decode together.
std::vector<HelixArrival> DrawArrivals(const HelixTrace& trace, double tokens_per_s, double begin_s,
                                       double duration_s, PythonRandom* random);

class HelixOnlineFeeder : public HelixFeeder {
 public:
  explicit HelixOnlineFeeder(std::vector<HelixArrival> arrivals) : arrivals_(std::move(arrivals)) {}
  void Start(HelixSimulator& simulator) override { Next(simulator); }
  void Arrived(HelixSimulator& simulator) override { Next(simulator); }

 private:
  void Next(HelixSimulator& simulator);

  std::vector<HelixArrival> arrivals_;
  size_t next_ = 0;
};

// Starts with `at_first` queries, a tenth of a second apart. If the scheduler knows its caches,
// adds a query whenever a prompt or a query is done and the scarcest layer is filled to at most
// kFeedUsage. Otherwise replaces each finished query.
class HelixOfflineFeeder : public HelixFeeder {
 public:
  static constexpr double kFeedUsage = 0.8;

  HelixOfflineFeeder(const HelixTrace& trace, int at_first, PythonRandom* random)
      : trace_(trace), at_first_(at_first), random_(random) {}
  void Start(HelixSimulator& simulator) override;
  void PromptDone(HelixSimulator& simulator) override;
  void QueryDone(HelixSimulator& simulator) override;

 private:
  void Add(HelixSimulator& simulator, double at_s);

  const HelixTrace& trace_;
  int at_first_;
  PythonRandom* random_;
};

}  // namespace millrace::experiments::helix
