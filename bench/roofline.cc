// The limits of this machine: read bandwidth and the f32 multiply-add peak, medians over repeats.
//
//   build/release/bench/roofline [--repeats N] [--threads N]
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <vector>

#include "bench/machine.h"

int main(int argc, char** argv) {
  using millrace::bench::Machine;
  int repeats = 31, threads = 2;
  CLI::App app("Measures read bandwidth and the f32 multiply-add peak");
  app.add_option("--repeats", repeats, "samples per median")->check(CLI::Range(1, 10000));
  app.add_option("--threads", threads, "the greatest number")
      ->check(CLI::Range(1, Machine::kMaxThreads));
  CLI11_PARSE(app, argc, argv);

  fmt::print(
      "Method: read bandwidth is each thread reading 512 MiB of its own (huge pages) front to "
      "back, "
      "in samples of 64 MiB; the peak is 12 chains of f32 multiply-adds per thread in registers. "
      "Medians of {} samples, all threads together; in brackets the smallest and the greatest.\n\n"
      "| threads | read GB/s | f32 GFLOP/s |\n|---|---|---|\n",
      repeats);
  Machine machine;
  for (int t = 1; t <= threads; t *= 2) {
    std::vector<double> reads, peaks;
    for (int i = 0; i < repeats; ++i) {
      reads.push_back(machine.SampleReadGbps(t));
      peaks.push_back(machine.SampleFmaGflops(t));
    }
    const auto [read_min, read_max] = std::minmax_element(reads.begin(), reads.end());
    const auto [peak_min, peak_max] = std::minmax_element(peaks.begin(), peaks.end());
    fmt::print("| {} | {:.1f} ({:.1f} to {:.1f}) | {:.0f} ({:.0f} to {:.0f}) |\n", t,
               millrace::bench::Median(reads), *read_min, *read_max, millrace::bench::Median(peaks),
               *peak_min, *peak_max);
  }
}
