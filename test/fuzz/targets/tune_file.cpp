// tune_file.cpp - files of autotuned algorithms: a fault, or texts that are safe to print on a terminal
#include "llmc/model/tune_file.h"

#include <nlohmann/json.hpp>

#include "test/fuzz/target.h"

namespace {

const fuzz::Target tune_file("tune_file", [](std::string_view bytes) {
    const llmc::TuneFile file = llmc::read_tune_file(fuzz::file_with("choices.json", bytes).string());
    fuzz::must_be_plain(file.fault);
    fuzz::must(file.fault.empty() || file.tuned.empty(), "all of the file or nothing");
    for (const auto& [device, table] : file.tuned)
        for (const auto& [library, tuned] : table)
            for (const auto& [problem, choice] : tuned) {
                for (const std::string& text : {choice.taken, choice.why}) fuzz::must_be_plain(text);
                fuzz::must(choice.seconds >= 0, "a time");
            }
    fuzz::must(llmc::tuned_from_json(llmc::to_json(file.tuned)) == file.tuned, "the same when it is read again");
});

}  // namespace
