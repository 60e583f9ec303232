// plan_choice.h - which plan of a library computes a pass of attention: the stored one, otherwise the fastest, where
// timing is allowed, otherwise the library's first. Host code; the library is behind functions
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/device/types.h"
#include "kernels/tuning/choices.h"

namespace kernels {

// A library, for one pass of one shape.
struct PlanLibrary {
    std::string name;     // with its version
    std::string problem;  // under which the choice is stored
    std::function<std::vector<std::string>()> plans;  // that compete, by their names, in the library's order
    std::function<bool(const std::string& plan)> select;  // false: the library has no plan of that name
    std::function<void()> run;      // enqueues the pass by the selected plan
    std::function<bool()> repeats;  // whether that is bit-identical each time
};

// Selects the stored plan. False: none is stored that the library has; one that it does not have is forgotten.
// choices may be nullptr.
bool select_stored_plan(const PlanLibrary& library, Choices* choices);
// Times the plans, selects the fastest whose results repeat, and stores it; leaves the library's first selected where
// there is no other, or none runs. Waits.
void choose_plan(const PlanLibrary& library, Choices& choices, StreamRef stream);

}  // namespace kernels
