// onebit_files.cpp - compression errors of 1-bit Adam of one rank, from a safetensors header without its length, read
// by that rank and by one of two
#include <algorithm>
#include <array>
#include <cmath>

#include "llmc/model/state_files.h"
#include "test/fuzz/target.h"

namespace {

const fuzz::Target onebit_files("onebit_files", [](std::string_view bytes) {
    constexpr std::size_t kElements = 6, kServed = 3;
    const std::vector<llmc::ParameterSpec> parameters{{.name = "a", .rows = 2, .columns = 3, .rows_in_files = 2}};
    fuzz::file_with(llmc::state_file_name("onebit", 0, 1), fuzz::safetensors_of(bytes));
    const auto read = [&](int ranks, std::size_t first_served) {
        std::array<float, kElements> worker{}, server{};
        const llmc::StateFile file{
            .name = "onebit", .by = llmc::StateFile::By::all, .optional = true,
            .quantities = {{.name = "worker_error", .tensors = by_parameter(parameters, {{0, worker}}),
                            .of_each_rank = true},
                           {.name = "server_error",
                            .tensors = by_parameter(parameters, {{std::int64_t(first_served),
                                                                  std::span(server).subspan(first_served)}})}},
            .marks = {{"version", "1", llmc::StateFile::Otherwise::refused},
                      {"layout", "bucket", llmc::StateFile::Otherwise::starts_at_0},
                      {"nodes", "", llmc::StateFile::Otherwise::resharded}}};
        std::size_t stored = 0;
        const std::string note =
            read_state(file, {.folder = fuzz::scratch_folder(), .files = 1, .parameters = parameters,
                              .elements = kElements, .ranks = ranks},
                       [&](std::span<float> to, std::span<const float> values) {
            std::ranges::copy(values, to.begin());
            stored += values.size();
        });
        fuzz::must(stored == 0 ? !note.empty() : stored == 2 * kElements - first_served, "all errors or none");
        for (const float x : worker) fuzz::must(std::isfinite(x), "finite errors");
        for (const float x : server) fuzz::must(std::isfinite(x), "finite errors");
    };
    read(1, 0);
    read(2, kServed);
});

}  // namespace
