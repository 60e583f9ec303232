// choices.cpp - lookups in the table, and a record of the entries used
#include "kernels/tuning/choices.h"

namespace kernels {

const Choice* Choices::find(const std::string& library, const std::string& problem) const {
    const auto choices = known.find(library);
    if (choices == known.end()) return nullptr;
    const auto found = choices->second.find(problem);
    if (found == choices->second.end()) return nullptr;
    used_[library][problem] = found->second;
    return &found->second;
}

void Choices::keep(const std::string& library, const std::string& problem, const Choice& choice) {
    for (ChoiceTable* table : {&known, &used_, &timed_}) (*table)[library][problem] = choice;
}

void Choices::reject(const std::string& library, const std::string& problem) {
    for (ChoiceTable* table : {&known, &used_})
        if (const auto choices = table->find(library); choices != table->end()) choices->second.erase(problem);
}

std::size_t count(const ChoiceTable& table) {
    std::size_t sum = 0;
    for (const auto& [library, choices] : table) sum += choices.size();
    return sum;
}

}  // namespace kernels
