// tuned_algorithms.cpp - lookups in the table, and a record of the entries used
#include "kernels/tuning/tuned_algorithms.h"

namespace kernels {

const TunedAlgorithm* TunedAlgorithms::find(const std::string& library, const std::string& problem) const {
    const auto tuned = known.find(library);
    if (tuned != known.end())
        if (const auto found = tuned->second.find(problem); found != tuned->second.end()) {
            used_[library][problem] = found->second;
            return &found->second;
        }
    if (timing && on_timing) on_timing();
    return nullptr;
}

void TunedAlgorithms::keep(const std::string& library, const std::string& problem, const TunedAlgorithm& choice) {
    for (TunedTable* table : {&known, &used_, &timed_}) (*table)[library][problem] = choice;
}

void TunedAlgorithms::reject(const std::string& library, const std::string& problem) {
    for (TunedTable* table : {&known, &used_})
        if (const auto tuned = table->find(library); tuned != table->end()) tuned->second.erase(problem);
}

std::size_t count(const TunedTable& table) {
    std::size_t sum = 0;
    for (const auto& [library, tuned] : table) sum += tuned.size();
    return sum;
}

}  // namespace kernels
