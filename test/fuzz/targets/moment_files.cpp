// moment_files.cpp - Adam moments of one rank, from a safetensors header without its length
#include "llmc/model/moment_files.h"

#include <array>
#include <cstring>

#include "test/fuzz/target.h"

namespace {

const fuzz::Target moment_files("moment_files", [](std::string_view bytes) {
    constexpr std::size_t kElements = 6;
    fuzz::file_with(llmc::moment_file_name(0, 1), fuzz::safetensors_of(bytes));
    const llmc::MomentFiles moments(fuzz::scratch_folder(), 1, kElements);
    std::array<std::array<float, kElements>, 2> first, second;
    for (const std::size_t time : {0, 1}) {
        first[time].fill(float(time));
        second[time].fill(float(time));
        moments.read(0, first[time], second[time]);
    }
    const auto same = [](const auto& both) { return std::memcmp(&both[0], &both[1], sizeof both[0]) == 0; };
    fuzz::must(same(first) && same(second), "all elements read");
    moments.read(2, std::span(first[0]).first(3), std::span(second[0]).first(3));
});

}  // namespace
