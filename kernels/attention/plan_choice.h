// plan_choice.h - selects a library's plan for a pass of attention: the stored one, otherwise the fastest if timing is
// allowed, otherwise the library's first. Host code; the library is behind functions
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/device/types.h"
#include "kernels/tuning/tuned_algorithms.h"

namespace kernels {

// A library, for one pass of one shape.
struct PlanLibrary {
    std::string name;     // with its version
    std::string problem;  // key of the stored choice
    std::function<std::vector<std::string>()> plans;  // names of the plans to time, in the library's order
    std::function<bool(const std::string& plan)> select;  // false: the library has no plan of that name
    std::function<void()> run;      // enqueues the pass by the selected plan
    std::function<bool()> repeats;  // whether its results are bit-identical in every run
};

// Selects the stored plan. False if there is none; a stored plan that the library does not have is removed.
// tuned may be nullptr.
bool select_stored_plan(const PlanLibrary& library, TunedAlgorithms* tuned);
// Times the plans, selects the fastest with bit-identical results, and stores it. The library's first stays selected if
// it is the only one, or none runs. Waits.
void choose_plan(const PlanLibrary& library, TunedAlgorithms& tuned, StreamRef stream);

}  // namespace kernels
