// One published figure or table that Millrace reproduces: the paper's values, our values, and a
// verdict. An experiment is one file in this folder that defines and registers a function; main.cc
// runs it by name. One thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace millrace::experiments {

// One line of the result. `paper` and `ours` are numbers, or strings where a number is not enough;
// `paper` is null if nothing was published.
struct Figure {
  std::string name;
  Json paper;
  Json ours;
  std::string unit;
  std::string verdict;  // "reproduced", "12 % lower", "shape only: ...", "not reproduced: ..."
  Json more = Json::object();  // further keys of this line, merged into its JSON
  bool held = true;            // whether the bar was reached, if there is one
};

struct Context {
  std::string data;       // the folder of published data: traces, profiles, helix, spot
  bool progress = false;  // report progress on stderr
  bool quick = false;     // a smaller run for the test suite; the verdicts must still hold
};

struct Experiment {
  std::string name;   // "md1"
  std::string title;  // one line: what it reproduces, with the paper's section
  bool needs_data = true;
  bool quick = false;  // fast enough, with Context::quick, for the test suite (under 20 s)
  std::function<Result<std::vector<Figure>>(const Context&)> run;
};

// All experiments, in the order of the table in README.md.
const std::vector<Experiment>& Experiments();

}  // namespace millrace::experiments
