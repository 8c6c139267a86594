// One published figure (or one table of them) that Millrace reproduces: what the paper says, what
// ours says, and an honest verdict. An experiment is one file in this folder that defines a
// function and registers it; main.cc runs it by name.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace millrace::experiments {

// One line of the result. `paper` and `ours` are numbers, or strings where a number says too
// little; `paper` is null where nothing was published.
struct Figure {
  std::string name;
  Json paper;
  Json ours;
  std::string unit;
  std::string verdict;  // "reproduced", "12 % lower", "shape only: ...", "not reproduced: ..."
  Json more = Json::object();  // further keys of this line, merged into its JSON
  bool held = true;            // whether the bar was reached, where there is one
};

struct Context {
  std::string data;       // the folder of published data: traces, profiles, helix, spot
  bool progress = false;  // tell on stderr how far it is
  bool quick = false;     // a smaller run for the test suite; the verdicts must still hold
};

struct Experiment {
  std::string name;   // "md1"
  std::string title;  // one line: what it reproduces, with the paper's section
  bool needs_data = true;
  bool quick = false;  // fast enough, with Context::quick, for the test suite (under 20 s)
  std::function<Result<std::vector<Figure>>(const Context&)> run;
};

// All of them, in the order of the table in README.md.
const std::vector<Experiment>& Experiments();

}  // namespace millrace::experiments
