// hellaswag_support.h - writes HellaSwag files word by word, independently of the writer under test; random examples
#pragma once
#include <random>

#include "test/support/shard_support.h"

namespace test {

struct HellaSwagBytes {
    using Ids = std::vector<std::uint16_t>;
    struct Example {
        Ids context;
        std::array<Ids, 4> endings;
        std::uint16_t right = 0;
    };
    std::array<std::int32_t, 256> header{};
    std::vector<Ids> words;  // one entry per example

    explicit HellaSwagBytes(const std::vector<Example>& examples, int vocabulary = 0, int end_of_text = 0) {
        std::size_t longest = 0;
        for (const Example& example : examples) {
            Ids all{65535, 0, std::uint16_t(words.size()), example.right, 4};
            const auto append = [&](const Ids& ids) {
                all.push_back(std::uint16_t(ids.size()));
                all.insert(all.end(), ids.begin(), ids.end());
            };
            append(example.context);
            for (const Ids& ending : example.endings) append(ending);
            all[1] = std::uint16_t(2 * all.size());
            longest = std::max(longest, 2 * all.size());
            words.push_back(all);
        }
        header = {20240522, 1, std::int32_t(examples.size()), std::int32_t(longest), vocabulary, end_of_text};
    }
    std::string bytes() const {
        std::string all(reinterpret_cast<const char*>(header.data()), sizeof header);
        for (const Ids& example : words) all.append(reinterpret_cast<const char*>(example.data()), 2 * example.size());
        return all;
    }
    std::string write(const std::string& path) const { return write_bytes(path, bytes()); }
};

// Contexts of 1 to `longest` ids below `vocabulary`, endings of 1 to 9 ids; every fourth example has endings of one id.
inline std::vector<HellaSwagBytes::Example> random_hellaswag(int count, int vocabulary, int longest,
                                                             unsigned seed = 1) {
    std::mt19937 engine(seed);
    const auto ids = [&](int size) {
        HellaSwagBytes::Ids all;
        for (int i = 0; i < size; ++i) all.push_back(std::uint16_t(engine() % unsigned(vocabulary)));
        return all;
    };
    std::vector<HellaSwagBytes::Example> examples(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < examples.size(); ++i) {
        examples[i].context = ids(1 + int(engine() % unsigned(longest)));
        for (auto& ending : examples[i].endings) ending = ids(i % 4 == 0 ? 1 : 1 + int(engine() % 9));
        examples[i].right = std::uint16_t(engine() % 4);
    }
    return examples;
}

}  // namespace test
