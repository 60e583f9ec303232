// llmc_file.cpp - llm.c's model files, unchanged and from the eight used words of a header
#include "llmc/weights/llmc_file.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "test/fuzz/target.h"

namespace {

using Words = std::array<std::int32_t, 8>;

// Bytes of the data if the model is small enough for this test, else 0.
std::size_t data_bytes_of(const Words& words) {
    constexpr std::int32_t kMost = 32;
    const auto in_bounds = [](std::int32_t word) { return word >= 0 && word <= kMost; };
    if (!std::all_of(words.begin() + 2, words.end(), in_bounds)) return 0;
    const auto positions = std::size_t(words[2]), layers = std::size_t(words[4]), channels = std::size_t(words[6]),
               padded = std::size_t(words[7]);
    return ((padded + positions + 2) * channels + layers * (12 * channels * channels + 13 * channels)) *
           (words[1] == 3 ? 4 : 2);
}

const fuzz::Target llmc_file("llmc_file", [](std::string_view bytes) {
    Words words;
    std::string contents = fuzz::with_header_of(sizeof words, bytes);
    if (contents.size() != bytes.size()) {
        std::memcpy(words.data(), bytes.data(), sizeof words);
        if (const std::size_t data = data_bytes_of(words)) contents.resize(1024 + data, '\x3f');
    }
    const llmc::LlmcFile file(fuzz::file_with("model.bin", contents));
    const auto tensors = file.table().tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        std::vector<float> values(std::size_t(tensors[i].rows_in_files * tensors[i].columns));
        file.read(int(i), values);
    }
});

}  // namespace
