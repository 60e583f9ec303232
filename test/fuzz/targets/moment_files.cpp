// moment_files.cpp - Adam's moments of one rank, from a safetensors header without its length
#include "llmc/model/moment_files.h"

#include <array>

#include "test/fuzz/target.h"

namespace {

const fuzz::Target moment_files("moment_files", [](std::string_view bytes) {
    constexpr std::size_t kElements = 6;
    fuzz::file_with(llmc::moment_file_name(0, 1), fuzz::safetensors_of(bytes));
    const llmc::MomentFiles moments(fuzz::scratch_folder(), 1, kElements);
    std::array<float, kElements> first{}, second{};
    moments.read(0, first, second);
    moments.read(2, std::span(first).first(3), std::span(second).first(3));
});

}  // namespace
