// number_text.h - numbers, units and durations as a user reads them
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>

namespace llmc {

// By a pattern of printf(). The sign of a NaN, which means nothing, is left out.
template <class... Values>
std::string format(const char* pattern, Values... values) {
    const auto print = [&](char* to, std::size_t size, auto... arguments) {
        return std::size_t(std::snprintf(to, size, pattern, arguments...));
    };
    const auto shown = []<class Value>(Value value) {
        if constexpr (std::is_floating_point_v<Value>) return std::isnan(value) ? std::fabs(value) : value;
        else return value;
    };
    std::string text(print(nullptr, 0, shown(values)...), '\0');
    print(text.data(), text.size() + 1, shown(values)...);
    return text;
}

// The noun in the form that fits the number: with an s unless the number is 1.
inline std::string noun_of(std::int64_t number, const std::string& noun) { return number == 1 ? noun : noun + 's'; }
// "1 step", "0 steps", "1200 steps"
inline std::string counted(std::int64_t number, const std::string& noun) {
    return std::to_string(number) + ' ' + noun_of(number, noun);
}
// 124439808 as "124,439,808".
std::string with_commas(std::int64_t number);
// "1 token", "2,048 tokens"
std::string with_commas(std::int64_t number, const std::string& noun);

// Three digits, in at most 5 columns: "640", "6.40k", "12.3M".
std::string short_text(double number);
std::string mebibytes(std::size_t bytes);  // "12.3 MiB"

std::string time_text(double seconds);   // "0.0136 s", "35d 07:13"
std::string clock_text(double seconds);  // "3:07", "1:02:45", "2d 03:10"
std::string left_text(double seconds);   // in at most 6 columns: "0:42", "12h05", "3d04h"

}  // namespace llmc
