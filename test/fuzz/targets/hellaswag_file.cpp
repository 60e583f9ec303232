// hellaswag_file.cpp - HellaSwag files, unchanged and from a header without its 250 unused words
#include "llmc/data/hellaswag_file.h"

#include <algorithm>

#include "test/fuzz/target.h"

namespace {

const fuzz::Target hellaswag_file("hellaswag_file", [](std::string_view bytes) {
    constexpr std::size_t kMeant = 24;  // the six used words
    const llmc::HellaSwagFile file(fuzz::file_with("hellaswag.bin", fuzz::with_header_of(kMeant, bytes)).string());
    fuzz::must(!file.examples().empty(), "an example");
    for (const llmc::HellaSwagExample& example : file.examples()) {
        const auto within = [&](std::span<const std::uint16_t> ids) {
            fuzz::must(!ids.empty(), "a token");
            fuzz::must(std::ranges::all_of(ids, [&](int id) { return id < file.vocabulary().size; }), "its ids");
        };
        within(example.context);
        for (const auto& ending : example.endings) within(ending);
        fuzz::must(example.right >= 0 && example.right < 4, "the number of the right ending");
    }
});

}  // namespace
