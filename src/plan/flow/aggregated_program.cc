#include "plan/flow/aggregated_program.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace millrace::plan {

AggregatedProgram::AggregatedProgram(const FlowProblem& problem, double cap, bool partial)
    : problem_(problem), cap_(cap) {
  // The program has no links, so nodes with equal rates are alike.
  std::map<std::vector<double>, int> by_rates;
  for (int i = 0; i < problem.num_nodes(); ++i) {
    const auto& rates = problem.nodes[i].tokens_per_s;
    if (rates.empty()) continue;
    const auto [it, fresh] = by_rates.emplace(rates, static_cast<int>(kinds_.size()));
    if (fresh) kinds_.emplace_back();
    kinds_[it->second].nodes.push_back(i);
  }
  value_column_ = program_.AddColumn({.upper = cap, .objective = 1});
  AddCounts();
  AddCover();
  if (!partial) AddPositionFlow();
}

int64_t AggregatedProgram::CoverTerms(const FlowProblem& problem) {
  std::map<std::vector<double>, bool> kinds;
  int64_t terms = 0;
  for (const FlowNode& node : problem.nodes) {
    if (!kinds.emplace(node.tokens_per_s, true).second) continue;
    for (int64_t k = 1; k <= node.max_layers(); ++k) terms += k * (problem.num_layers - k + 1);
  }
  return terms;
}

double AggregatedProgram::Rate(const Kind& kind, int layers) const {
  return std::min(cap_, problem_.nodes[kind.nodes.front()].TokensPerS(layers));
}

// A kind has one column per k = 1, 2, ... and first layer 0..L - k.
int AggregatedProgram::Column(const Kind& kind, const LayerRange& range) const {
  const int k = range.size(), l = problem_.num_layers;
  return kind.first_column + (k - 1) * (l + 1) - (k - 1) * k / 2 + range.begin;
}

void AggregatedProgram::AddCounts() {
  for (Kind& kind : kinds_) {
    const double count = static_cast<double>(kind.nodes.size());
    std::vector<std::pair<int, double>> all;
    kind.first_column = static_cast<int>(program_.columns.size());
    for (int k = 1; k <= problem_.nodes[kind.nodes.front()].max_layers(); ++k) {
      for (int begin = 0; begin + k <= problem_.num_layers; ++begin) {
        all.emplace_back(program_.AddColumn({.upper = count, .integer = true}), 1.0);
      }
    }
    program_.AtMost(count, std::move(all));
  }
}

// Each layer's holders together carry at least the flow.
void AggregatedProgram::AddCover() {
  std::vector<std::vector<std::pair<int, double>>> rows(problem_.num_layers);
  for (const Kind& kind : kinds_) {
    for (int k = 1; k <= problem_.nodes[kind.nodes.front()].max_layers(); ++k) {
      for (int begin = 0; begin + k <= problem_.num_layers; ++begin) {
        const int column = Column(kind, {begin, begin + k});
        for (int l = begin; l < begin + k; ++l) rows[l].emplace_back(column, Rate(kind, k) / cap_);
      }
    }
  }
  for (auto& row : rows) {
    row.emplace_back(value_column_, -1 / cap_);
    program_.AtLeast(0, std::move(row));
  }
}

// A flow of the value from position 0 to position L. The arc s -> s + k carries the flow of the
// nodes that hold [s, s + k).
void AggregatedProgram::AddPositionFlow() {
  std::vector<std::vector<std::pair<int, double>>> balance(problem_.num_layers + 1);
  int longest = 0;
  for (const Kind& kind : kinds_) {
    longest = std::max(longest, problem_.nodes[kind.nodes.front()].max_layers());
  }
  for (int k = 1; k <= longest; ++k) {
    for (int begin = 0; begin + k <= problem_.num_layers; ++begin) {
      const int arc = program_.AddColumn({.upper = cap_});
      balance[begin].emplace_back(arc, 1);
      balance[begin + k].emplace_back(arc, -1);
      std::vector<std::pair<int, double>> terms = {{arc, -1 / cap_}};
      for (const Kind& kind : kinds_) {
        if (problem_.nodes[kind.nodes.front()].max_layers() < k) continue;
        terms.emplace_back(Column(kind, {begin, begin + k}), Rate(kind, k) / cap_);
      }
      program_.AtLeast(0, std::move(terms));
    }
  }
  balance.front().emplace_back(value_column_, -1);
  balance.back().emplace_back(value_column_, 1);
  for (auto& terms : balance) program_.Equal(0, std::move(terms));
}

Placement AggregatedProgram::Decode(const std::vector<double>& values) const {
  Placement placement(problem_.num_nodes());
  for (const Kind& kind : kinds_) {
    size_t next = 0;
    for (int k = 1; k <= problem_.nodes[kind.nodes.front()].max_layers(); ++k) {
      for (int begin = 0; begin + k <= problem_.num_layers; ++begin) {
        const long count = std::lround(values[Column(kind, {begin, begin + k})]);
        for (long c = 0; c < count && next < kind.nodes.size(); ++c) {
          placement[kind.nodes[next++]] = {begin, begin + k};
        }
      }
    }
  }
  return placement;
}

void AggregatedProgram::Fix(const Placement& placement, const std::vector<int>& free) {
  for (const Kind& kind : kinds_) {
    for (int node : kind.nodes) {
      const bool is_free = std::find(free.begin(), free.end(), node) != free.end();
      if (is_free || placement[node].size() == 0) continue;
      program_.columns[Column(kind, placement[node])].lower += 1;
    }
  }
}

}  // namespace millrace::plan
