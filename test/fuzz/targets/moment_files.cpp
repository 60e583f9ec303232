// moment_files.cpp - Adam moments of one rank, from a safetensors header without its length, read whole and in part
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "llmc/model/state_files.h"
#include "test/fuzz/target.h"

namespace {

const fuzz::Target moment_files("moment_files", [](std::string_view bytes) {
    constexpr std::size_t kElements = 6;
    const std::vector<llmc::ParameterSpec> parameters{{.name = "a", .rows = 2, .columns = 3, .rows_in_files = 2}};
    fuzz::file_with(llmc::state_file_name("optimizer", 0, 1), fuzz::safetensors_of(bytes));
    const auto read = [&](std::size_t first, std::size_t size, float before) {
        std::array<std::array<float, kElements>, 2> moments;
        for (auto& values : moments) values.fill(before);
        const auto tensors = [&](std::size_t i) {
            return by_parameter(parameters, {{std::int64_t(first), std::span(moments[i]).first(size)}});
        };
        const llmc::StateFile file{.name = "optimizer",
                                   .quantities = {{.name = "first_moment", .tensors = tensors(0)},
                                                  {.name = "second_moment", .tensors = tensors(1),
                                                   .non_negative = true}}};
        read_state(file, {.folder = fuzz::scratch_folder(), .files = 1, .parameters = parameters,
                          .elements = kElements},
                   [](std::span<float> to, std::span<const float> values) {
            std::ranges::copy(values, to.begin());
        });
        return moments;
    };
    const auto once = read(0, kElements, 0), again = read(0, kElements, 1);
    fuzz::must(std::memcmp(&once, &again, sizeof once) == 0, "all elements read");
    for (std::size_t i = 0; i < kElements; ++i)
        fuzz::must(std::isfinite(once[0][i]) && std::isfinite(once[1][i]) && once[1][i] >= 0, "valid moments");
    const auto part = read(2, 3, 0);
    fuzz::must(std::memcmp(part[0].data(), once[0].data() + 2, 3 * sizeof(float)) == 0, "a part like the whole");
});

}  // namespace
