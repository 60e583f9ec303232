// number_text.cpp - digits, units and durations
#include "llmc/base/number_text.h"

namespace llmc {

std::string with_commas(std::int64_t number) {
    std::string text = std::to_string(number);
    const int sign = number < 0;
    for (int place = int(text.size()) - 3; place > sign; place -= 3) text.insert(std::size_t(place), 1, ',');
    return text;
}

std::string with_commas(std::int64_t number, const std::string& noun) {
    return with_commas(number) + ' ' + noun_of(number, noun);
}

std::string short_text(double number) {
    const char* unit = "";
    for (const char* const larger : {"k", "M", "G"})
        if (number >= 999.5) number /= 1000, unit = larger;
    return format(number < 9.995 ? "%.2f%s" : number < 99.95 ? "%.1f%s" : "%.0f%s", number, unit);
}

std::string mebibytes(std::size_t bytes) { return format("%.1f MiB", double(bytes) / double(1 << 20)); }

std::string clock_text(double seconds) {
    if (seconds > 1e15) return format("%.3gd", seconds / 86400);
    const long long whole = std::llround(seconds), days = whole / 86400, hours = whole / 3600 % 24,
                    minutes = whole / 60 % 60;
    if (days > 0) return format("%lldd %02lld:%02lld", days, hours, minutes);
    if (hours > 0) return format("%lld:%02lld:%02lld", hours, minutes, whole % 60);
    return format("%lld:%02lld", minutes, whole % 60);
}

std::string time_text(double seconds) {
    return seconds < 59.5 ? format("%.3g s", seconds) : clock_text(seconds);
}

std::string left_text(double seconds) {
    const auto minutes = (long long)(seconds / 60);
    if (minutes < 60) return clock_text(seconds);
    if (minutes < 24 * 60) return format("%lldh%02lld", minutes / 60, minutes % 60);
    const auto days = minutes / (24 * 60);
    return days < 100 ? format("%lldd%02lldh", days, minutes / 60 % 24) : format("%lldd", days);
}

}  // namespace llmc
