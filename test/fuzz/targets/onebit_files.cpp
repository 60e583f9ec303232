// onebit_files.cpp - compression errors of 1-bit Adam of one rank, from a safetensors header without its length, read
// by that rank and by one of two
#include "llmc/model/onebit_files.h"

#include <cmath>

#include "test/fuzz/target.h"

namespace {

const fuzz::Target onebit_files("onebit_files", [](std::string_view bytes) {
    constexpr std::int64_t kElements = 6, kServed = 3;
    fuzz::file_with(llmc::onebit_file_name(0, 1), fuzz::safetensors_of(bytes));
    llmc::OnebitState state{.kind = llmc::OnebitState::Kind::errors, .elements = 2 * kElements,
                            .worked = {{.first = 0, .size = kElements}}, .served = {{.first = 0, .size = kElements}},
                            .layout = "bucket"};
    const auto read = [&](int ranks) {
        const llmc::OnebitErrors errors = read_onebit(state, kElements, fuzz::scratch_folder(), 1, 0, ranks);
        fuzz::must(errors.values.empty() || std::ssize(errors.values) == state.elements, "all errors or none");
        for (const float x : errors.values) fuzz::must(std::isfinite(x), "finite errors");
    };
    read(1);
    state.elements = kElements + kServed;
    state.served = {{.first = kServed, .size = kServed}};
    read(2);
});

}  // namespace
