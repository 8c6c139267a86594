#include "experiments/lib/helix/helix_milp.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace millrace::experiments::helix {

HelixMilp::HelixMilp(const plan::FlowProblem& problem, const HelixMilpOptions& options)
    : problem_(problem), options_(options), in_(problem.num_nodes()), out_(problem.num_nodes()) {
  const int n = problem.num_nodes();
  for (int i = 0; i < n; ++i) AddNode(i);
  for (int i = 0; i < n; ++i) AddCoordinator(i);
  const std::vector<bool> kept = KeptLinks();
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      if (kept[i * n + j]) AddPair(i, j);
    }
  }
  AddFlowRows();
}

void HelixMilp::AddEnd(int node, double factor, Terms& terms) const {
  terms.emplace_back(start_[node], factor);
  for (int k = 1; k <= problem_.nodes[node].max_layers(); ++k) {
    terms.emplace_back(hold_[node] + k - 1, factor * k);
  }
}

// The node holds exactly one number of layers, and its range ends within the model.
void HelixMilp::AddNode(int node) {
  const int layers = problem_.nodes[node].max_layers();
  MR_CHECK(layers > 0) << "node " << node << " holds no layer";
  start_.push_back(program_.AddColumn({.upper = problem_.num_layers - 1.0, .integer = true}));
  hold_.push_back(static_cast<int>(program_.columns.size()));
  Terms one;
  for (int k = 1; k <= layers; ++k) {
    one.emplace_back(program_.AddColumn({.upper = 1, .integer = true}), 1);
  }
  program_.Equal(1, std::move(one));
  Terms end;
  AddEnd(node, 1, end);
  program_.AtMost(problem_.num_layers, std::move(end));
}

// Adds a flow column that its switch opens, and returns the switch. A coordinator end adds no node.
int HelixMilp::AddLink(double capacity, int from, int to) {
  const bool enters = from == problem_.coordinator();
  const int flow = program_.AddColumn({.objective = enters ? 1.0 : 0.0});
  const int open = program_.AddColumn({.upper = 1, .integer = true});
  program_.AtMost(0, {{flow, 1}, {open, -capacity}});
  if (!enters) out_[from].emplace_back(flow, 1);
  if (to != problem_.coordinator()) in_[to].emplace_back(flow, 1);
  return open;
}

void HelixMilp::AddCoordinator(int node) {
  const double m = problem_.num_layers;
  const int coordinator = problem_.coordinator();
  if (const double c = problem_.Link(coordinator, node); c > 0) {
    const int d = AddLink(c, coordinator, node);
    program_.AtMost(m, {{start_[node], 1}, {d, m}});
    if (!options_.remove_redundant) program_.AtLeast(1, {{d, 1}, {start_[node], 1}});
  }
  if (const double c = problem_.Link(node, coordinator); c > 0) {
    const int d = AddLink(c, node, coordinator);
    Terms open = {{d, m}};
    AddEnd(node, -1, open);
    program_.AtMost(0, std::move(open));
    if (!options_.remove_redundant) {
      // The paper writes (m - 1)(d + 1) >= e, which a one-layer model cannot satisfy.
      Terms closed = {{d, -1}};
      AddEnd(node, 1, closed);
      program_.AtMost(m - 1, std::move(closed));
    }
  }
}

void HelixMilp::AddPair(int i, int j) {
  const double m = problem_.num_layers;
  const int d = AddLink(problem_.Link(i, j), i, j);
  ++num_links_;
  Terms gap;  // start_j - e_i
  AddEnd(i, -1, gap);
  gap.emplace_back(start_[j], 1);
  const auto with = [](Terms terms, int column, double factor) {
    terms.emplace_back(column, factor);
    return terms;
  };
  if (!problem_.partial_inference) {
    program_.AtLeast(-m, with(gap, d, -m));  // m d <= m + gap
    program_.AtMost(m, with(gap, d, m));     // m d <= m - gap
    return;
  }
  const int c1 = program_.AddColumn({.upper = 1, .integer = true});
  const int c2 = program_.AddColumn({.upper = 1, .integer = true});
  program_.AtMost(m + 1, with(gap, c1, m + 1));  // c1: e_i >= start_j
  Terms longer;                                  // e_j - e_i
  AddEnd(i, -1, longer);
  AddEnd(j, 1, longer);
  program_.AtLeast(1 - (m + 1), with(longer, c2, -(m + 1)));  // c2: e_j > e_i
  program_.AtMost(0, {{d, 2}, {c1, -1}, {c2, -1}});
  if (options_.remove_redundant) return;
  program_.AtLeast(1, with(gap, c1, m + 1));
  program_.AtMost(0, with(longer, c2, -(m + 1)));
  program_.AtMost(1, {{c1, 1}, {c2, 1}, {d, -1}});
}

// Conservation of flow, and what each node computes.
void HelixMilp::AddFlowRows() {
  for (int i = 0; i < problem_.num_nodes(); ++i) {
    Terms balance = in_[i];
    for (const auto& [column, factor] : out_[i]) balance.emplace_back(column, -factor);
    program_.Equal(0, std::move(balance));
    Terms compute = in_[i];
    for (int k = 1; k <= problem_.nodes[i].max_layers(); ++k) {
      compute.emplace_back(hold_[i] + k - 1, -problem_.nodes[i].TokensPerS(k));
    }
    program_.AtMost(0, std::move(compute));
  }
}

std::vector<bool> HelixMilp::KeptLinks() const {
  const int n = problem_.num_nodes();
  std::vector<bool> kept(static_cast<size_t>(n) * n, false);
  for (int i = 0; i < n; ++i) {
    std::vector<int> order;
    for (int j = 0; j < n; ++j) {
      if (j != i && problem_.Link(i, j) > 0) order.push_back(j);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return problem_.Link(i, a) > problem_.Link(i, b); });
    const size_t keep = options_.keep_links.value_or(n);
    for (size_t o = 0; o < order.size() && o < keep; ++o) kept[i * n + order[o]] = true;
  }
  if (!options_.incumbent) return kept;
  const plan::Placement& placement = *options_.incumbent;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      if (i == j || placement[i].size() == 0 || placement[j].size() == 0) continue;
      if (problem_.Link(i, j) <= 0) continue;
      if (plan::CanFollow(placement[i], placement[j], problem_.partial_inference))
        kept[i * n + j] = true;
    }
  }
  return kept;
}

plan::Placement HelixMilp::Decode(const std::vector<double>& values) const {
  plan::Placement placement(problem_.num_nodes());
  for (int i = 0; i < problem_.num_nodes(); ++i) {
    const int begin = static_cast<int>(std::lround(values[start_[i]]));
    for (int k = 1; k <= problem_.nodes[i].max_layers(); ++k) {
      if (values[hold_[i] + k - 1] < 0.5) continue;
      placement[i] = {begin, std::min(begin + k, problem_.num_layers)};
    }
  }
  return placement;
}

}  // namespace millrace::experiments::helix
