// CBC (COIN-OR branch and cut) behind the MilpSolver interface, through its C API.
#include <Cbc_C_Interface.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "base/check.h"
#include "plan/flow/milp_solver.h"

namespace millrace::plan {
namespace {

struct ModelDeleter {
  void operator()(Cbc_Model* model) const { Cbc_deleteModel(model); }
};
using Model = std::unique_ptr<Cbc_Model, ModelDeleter>;

constexpr double kCbcInfinity = std::numeric_limits<double>::max();

double ToCbc(double value) { return std::clamp(value, -kCbcInfinity, kCbcInfinity); }

// The program column by column, as CBC takes it. CBC minimises. The additional last column is an
// integer fixed at zero: without an integer, CBC takes a path that prints.
Model Load(const LinearProgram& program) {
  const int columns = static_cast<int>(program.columns.size()) + 1;
  const int rows = static_cast<int>(program.rows.size());
  std::vector<CoinBigIndex> start(columns + 1, 0);
  for (const auto& row : program.rows) {
    for (const auto& [column, value] : row.terms) ++start[column + 1];
  }
  for (int c = 0; c < columns; ++c) start[c + 1] += start[c];
  std::vector<int> index(start.back());
  std::vector<double> value(start.back());
  std::vector<CoinBigIndex> next(start.begin(), start.end() - 1);
  std::vector<double> row_lower, row_upper, lower, upper, objective;
  for (int r = 0; r < rows; ++r) {
    row_lower.push_back(ToCbc(program.rows[r].lower));
    row_upper.push_back(ToCbc(program.rows[r].upper));
    for (const auto& [column, coefficient] : program.rows[r].terms) {
      index[next[column]] = r;
      value[next[column]++] = coefficient;
    }
  }
  for (const auto& column : program.columns) {
    lower.push_back(ToCbc(column.lower));
    upper.push_back(ToCbc(column.upper));
    objective.push_back(-column.objective);
  }
  lower.push_back(0);
  upper.push_back(0);
  objective.push_back(0);
  Model model(Cbc_newModel());
  Cbc_setParameter(model.get(), "logLevel", "0");
  Cbc_loadProblem(model.get(), columns, rows, start.data(), index.data(), value.data(),
                  lower.data(), upper.data(), objective.data(), row_lower.data(), row_upper.data());
  for (int c = 0; c + 1 < columns; ++c) {
    if (program.columns[c].integer) Cbc_setInteger(model.get(), c);
  }
  Cbc_setInteger(model.get(), columns - 1);
  return model;
}

void SetLimits(Cbc_Model* model, const LinearProgram& program, const MilpLimits& limits) {
  if (limits.seconds) {
    Cbc_setParameter(model, "timeMode", "elapsed");
    Cbc_setParameter(model, "seconds", std::to_string(*limits.seconds).c_str());
  }
  if (limits.nodes) Cbc_setParameter(model, "maxNodes", std::to_string(*limits.nodes).c_str());
  if (limits.warm_start.empty()) return;
  MR_CHECK(limits.warm_start.size() == program.columns.size());
  std::vector<int> columns(program.columns.size());
  for (size_t c = 0; c < columns.size(); ++c) columns[c] = static_cast<int>(c);
  Cbc_setMIPStartI(model, static_cast<int>(columns.size()), columns.data(),
                   limits.warm_start.data());
}

class CbcSolver : public MilpSolver {
 public:
  MilpSolution Solve(const LinearProgram& program, const MilpLimits& limits) override {
    const Model model = Load(program);
    SetLimits(model.get(), program, limits);
    Cbc_solve(model.get());
    MilpSolution solution;
    solution.nodes = Cbc_getNodeCount(model.get());
    if (Cbc_isProvenInfeasible(model.get())) {
      solution.status = MilpStatus::kInfeasible;
      return solution;
    }
    if (Cbc_isContinuousUnbounded(model.get())) {
      solution.status = MilpStatus::kUnbounded;
      return solution;
    }
    solution.bound = -Cbc_getBestPossibleObjValue(model.get());
    const double* best = Cbc_bestSolution(model.get());
    if (best == nullptr) return solution;
    solution.values.assign(best, best + program.columns.size());
    for (size_t c = 0; c < program.columns.size(); ++c) {
      solution.objective += program.columns[c].objective * solution.values[c];
    }
    const bool optimal = Cbc_isProvenOptimal(model.get());
    solution.status = optimal ? MilpStatus::kOptimal : MilpStatus::kFeasible;
    if (optimal) solution.bound = solution.objective;
    return solution;
  }
};

}  // namespace

std::unique_ptr<MilpSolver> MakeCbcSolver() { return std::make_unique<CbcSolver>(); }

}  // namespace millrace::plan
