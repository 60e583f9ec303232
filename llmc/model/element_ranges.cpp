// element_ranges.cpp - converts ranges to text and back, and checks what they cover
#include "llmc/model/element_ranges.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "kernels/base/error.h"

namespace llmc {

std::string text_of_ranges(const std::vector<ElementRange>& ranges) {
    std::string text;
    for (const ElementRange& range : ranges)
        text.append(text.empty() ? "" : " ").append(std::to_string(range.first)).append("+").append(
            std::to_string(range.size));
    return text;
}

const std::string& metadata_of(const SafetensorsFile& file, const std::string& key, const char* kind) {
    const auto found = file.metadata().find(key);
    require(found != file.metadata().end(), file.path(), "without \"" + key + "\" in its metadata", kind);
    return found->second;
}

std::vector<ElementRange> ranges_in(const std::string& text, const std::string& where, std::int64_t elements) {
    std::vector<ElementRange> all;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        std::istringstream numbers(word);
        ElementRange range;
        char plus = 0;
        require(numbers >> range.first >> plus >> range.size && plus == '+' && numbers.peek() == EOF &&
                    range.first >= 0 && range.size >= 0 && range.first <= elements &&
                    range.size <= elements - range.first,
                where, in_quotes(text), "FIRST+SIZE ... within the " + std::to_string(elements) + " elements");
        all.push_back(range);
    }
    require(are_disjoint(all), where, in_quotes(text), "each element once");
    return all;
}

bool are_disjoint(std::vector<ElementRange> ranges) {
    std::erase_if(ranges, [](const ElementRange& range) { return range.size == 0; });
    std::ranges::sort(ranges, {}, &ElementRange::first);
    return std::ranges::adjacent_find(ranges, [](const ElementRange& a, const ElementRange& b) {
               return a.end() > b.first;
           }) == ranges.end();
}

std::optional<std::int64_t> times_covered(const std::vector<ElementRange>& ranges, std::int64_t elements) {
    std::map<std::int64_t, std::int64_t> changes{{0, 0}, {elements, 0}};
    for (const ElementRange& range : ranges) {
        ++changes[range.first];
        --changes[range.end()];
    }
    const std::int64_t times = changes.begin()->second;
    std::int64_t now = 0;
    for (const auto& [element, change] : changes) {
        now += change;
        if (element < elements && now != times) return std::nullopt;
    }
    return times;
}

}  // namespace llmc
