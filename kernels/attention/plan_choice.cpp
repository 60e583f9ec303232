// plan_choice.cpp - times a library's plans of one pass
#include "kernels/attention/plan_choice.h"

#include <cstdio>

#include "kernels/base/error.h"
#include "kernels/tuning/timing.h"

namespace kernels {

bool select_stored_plan(const PlanLibrary& library, TunedAlgorithms* tuned) {
    const TunedAlgorithm* const known = tuned ? tuned->find(library.name, library.problem) : nullptr;
    if (!known) return false;
    if (library.select(known->taken)) return true;
    tuned->reject(library.name, library.problem);
    return false;
}

void choose_plan(const PlanLibrary& library, TunedAlgorithms& tuned, StreamRef stream) {
    const std::vector<std::string> plans = library.plans();
    if (plans.size() < 2) return;
    const auto select = [&](int i) {
        if (!library.select(plans[std::size_t(i)])) throw Error("the library has no " + plans[std::size_t(i)] +
                                                                " any more", Blame::runtime);
    };
    const auto run = [&](int i) {
        select(i);
        library.run();
    };
    Timing timing = time_candidates(int(plans.size()), run, tuned.cache_bytes, stream);
    const int chosen = fastest_reproducible(timing, [&](int i) {
        select(i);
        return library.repeats();
    });
    select(chosen < 0 ? 0 : chosen);
    if (chosen < 0) return tuned.note(library.problem + ": the library's first plan" + timing.notes);
    std::string times;
    for (std::size_t i = 0; i < plans.size(); ++i) {
        char text[32];
        std::snprintf(text, sizeof text, " %.4f ms", 1e3 * timing.seconds[i]);
        times += (i > 0 ? "; " : "") + plans[i] + text;
    }
    tuned.keep(library.name, library.problem,
               {plans[std::size_t(chosen)], times + timing.notes, timing.seconds[std::size_t(chosen)]});
}

}  // namespace kernels
