#include "tests/scenarios/cluster/plan_text.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

namespace millrace::cluster {
namespace {

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

Result<int> Number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument(fmt::format("'{}' is no number", text));
  }
  return value;
}

// "0-1": both are included.
Result<LayerRange> Layers(const std::string& text) {
  const std::vector<std::string> ends = Split(text, '-');
  if (ends.size() != 2) return InvalidArgument(fmt::format("'{}' is no range of layers", text));
  MR_ASSIGN_OR_RETURN(const int first, Number(ends[0]));
  MR_ASSIGN_OR_RETURN(const int last, Number(ends[1]));
  return LayerRange{first, last + 1};
}

Status AddStage(const std::string& text, StageRole& role, Plan& plan) {
  StagePlan stage;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    if (word == "prefill") {
      role = StageRole::kPrefill;
    } else if (word == "decode") {
      role = StageRole::kDecode;
    } else if (word.starts_with("tp=")) {
      MR_ASSIGN_OR_RETURN(stage.tensor_parallel, Number(word.substr(3)));
    } else {
      MR_ASSIGN_OR_RETURN(stage.layers, Layers(word));
    }
  }
  stage.role = role;
  plan.stages.push_back(std::move(stage));
  return OkStatus();
}

}  // namespace

Result<Plan> ParseChains(const std::string& text, int num_layers) {
  Plan plan{.num_layers = num_layers};
  for (const std::string& chain : Split(text, ';')) {
    StageRole role = StageRole::kBoth;
    std::optional<int> before;
    for (const std::string& stage : Split(chain, '>')) {
      const int here = static_cast<int>(plan.stages.size());
      MR_RETURN_IF_ERROR(AddStage(stage, role, plan));
      plan.edges.push_back({before, here, 1});
      before = here;
    }
    plan.edges.push_back({before, std::nullopt, 1});
  }
  return plan;
}

Result<Plan> ParseGraph(const std::string& text, int num_layers) {
  Plan plan{.num_layers = num_layers};
  const std::vector<std::string> halves = Split(text, ':');
  if (halves.size() != 2) return InvalidArgument("a graph is STAGES: EDGES");
  std::map<std::string, std::optional<int>> stages = {{"in", std::nullopt}, {"out", std::nullopt}};
  std::istringstream in(halves[0]), edges(halves[1]);
  for (std::string word; in >> word;) {
    const std::vector<std::string> sides = Split(word, '=');
    if (sides.size() != 2) return InvalidArgument(fmt::format("'{}' is no NAME=LAYERS", word));
    MR_ASSIGN_OR_RETURN(const LayerRange layers, Layers(sides[1]));
    stages[sides[0]] = static_cast<int>(plan.stages.size());
    plan.stages.push_back({.layers = layers});
  }
  for (std::string word; edges >> word;) {
    const std::vector<std::string> sides = Split(word, '=');
    const std::vector<std::string> ends = Split(sides[0], '>');
    if (sides.size() != 2 || ends.size() != 2 || !stages.contains(ends[0]) ||
        !stages.contains(ends[1])) {
      return InvalidArgument(fmt::format("'{}' is no STAGE>STAGE=FLOW", word));
    }
    MR_ASSIGN_OR_RETURN(const int flow, Number(sides[1]));
    plan.edges.push_back({stages.at(ends[0]), stages.at(ends[1]), static_cast<double>(flow)});
  }
  return plan;
}

}  // namespace millrace::cluster
