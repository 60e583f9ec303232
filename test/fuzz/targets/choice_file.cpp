// choice_file.cpp - files of autotuned algorithms: a fault, or texts that are safe to print on a terminal
#include "llmc/run/start/choice_file.h"

#include <nlohmann/json.hpp>

#include "test/fuzz/target.h"

namespace {

const fuzz::Target choice_file("choice_file", [](std::string_view bytes) {
    const llmc::ChoiceFile file = llmc::read_choices(fuzz::file_with("choices.json", bytes).string());
    fuzz::must_be_plain(file.fault);
    fuzz::must(file.fault.empty() || file.choices.empty(), "all of the file or nothing");
    for (const auto& [device, table] : file.choices)
        for (const auto& [library, choices] : table)
            for (const auto& [problem, choice] : choices) {
                for (const std::string& text : {choice.taken, choice.why}) fuzz::must_be_plain(text);
                fuzz::must(choice.seconds >= 0, "a time");
            }
    fuzz::must(llmc::choices_from_json(llmc::to_json(file.choices)) == file.choices, "the same when it is read again");
});

}  // namespace
