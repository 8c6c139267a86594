// What the integer program adds to the planner's local search: a proof that the incumbent is
// optimal, a better incumbent from large neighbourhoods, and a lower bound. Works on the portfolio
// of one call, on its thread.
#pragma once

#include "plan/flow/milp_solver.h"
#include "plan/flow/portfolio.h"

namespace millrace::plan {

// Solves the program capped just above the incumbent. An optimum below the cap is the optimum of
// all placements; a solution at the cap is a better incumbent.
void ProveWithMilp(Portfolio& portfolio, MilpSolver& solver, std::optional<double> seconds);

// Frees a few nodes at a time and solves the program for them. Helps only if links do not bind.
// REQUIRES, as below: the portfolio has a time limit.
void SearchNeighbourhoods(Portfolio& portfolio, MilpSolver& solver, std::optional<double> seconds);

// Iterated capping: solves the program capped at the bound; the bound it proves is the next cap.
void TightenBound(Portfolio& portfolio, MilpSolver& solver, std::optional<double> seconds);

}  // namespace millrace::plan
