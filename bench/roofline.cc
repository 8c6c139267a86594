// The limits of this machine: read bandwidth, the f32 multiply-add peak and the peak of AMX's
// tiles, medians over repeats.
//
//   build/release/bench/roofline [--repeats N] [--threads N]
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <vector>

#include "base/statistics.h"
#include "bench/machine.h"

int main(int argc, char** argv) {
  using millrace::bench::Machine;
  int repeats = 31, threads = 2;
  CLI::App app("Measures read bandwidth and the peaks of f32 multiply-adds and of AMX's tiles");
  app.add_option("--repeats", repeats, "samples per median")->check(CLI::Range(1, 10000));
  app.add_option("--threads", threads, "the greatest number")
      ->check(CLI::Range(1, Machine::kMaxThreads));
  CLI11_PARSE(app, argc, argv);

  fmt::print(
      "Method: read bandwidth is each thread reading 512 MiB of its own (huge pages) front to "
      "back, "
      "in samples of 64 MiB; the f32 peak is 12 chains of multiply-adds per thread in registers, "
      "the "
      "bf16 peak four products of AMX's tiles (0: none). "
      "Medians of {} samples, all threads together; in brackets the smallest and the greatest.\n\n"
      "| threads | read GB/s | f32 GFLOP/s | bf16 GFLOP/s on tiles |\n|---|---|---|---|\n",
      repeats);
  Machine machine;
  for (int t = 1; t <= threads; t *= 2) {
    std::vector<double> reads, peaks, tiles;
    for (int i = 0; i < repeats; ++i) {
      reads.push_back(machine.SampleReadGbps(t));
      peaks.push_back(machine.SampleFmaGflops(t));
      tiles.push_back(machine.SampleTileGflops(t));
    }
    const auto range = [](const std::vector<double>& samples, int digits) {
      const auto [min, max] = std::minmax_element(samples.begin(), samples.end());
      return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", millrace::Median(samples), digits, *min,
                         digits, *max, digits);
    };
    fmt::print("| {} | {} | {} | {} |\n", t, range(reads, 1), range(peaks, 0), range(tiles, 0));
  }
}
