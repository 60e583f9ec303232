// option_texts.cpp - options whose text has a syntax of its own: --batch-schedule and --memory
#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/base/option.h"
#include "llmc/base/value_text.h"
#include "llmc/run/options/options.h"

namespace llmc {

BatchSchedule sizes_of_steps(const Options& o, std::int64_t ranks) {
    constexpr std::size_t kMost = 100;
    const std::string_view text = o.batch_schedule;
    if (o.batch_schedule.empty())
        return {{0, o.total_batch_tokens > 0 ? o.total_batch_tokens : o.micro_batch * o.seq_len * ranks}};
    BatchSchedule schedule;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        const std::string entry(text.substr(begin, end - begin));
        const std::size_t colon = entry.find(':');
        const std::string part = entry.empty() ? ", with an empty entry" : ", with the entry " + in_quotes(entry);
        require(colon != entry.npos, "--batch-schedule", in_quotes(text) + (entry == text ? "" : part),
                "entries FROM:TOKENS, such as 0:65536,200M:131072");
        const std::string which = "--batch-schedule: entry " + std::to_string(schedule.size() + 1);
        require(schedule.size() < kMost, which, "too many", "at most " + std::to_string(kMost) + " entries");
        const std::int64_t from = parse_number(which, entry.substr(0, colon), std::int64_t(0), kMany),
                           least = schedule.empty() ? 0 : schedule.back().from + 1;
        require(from >= least && (least > 0 || from == 0), which + ": its first token", from,
                least == 0 ? "0, the start of the run" : std::to_string(least) + " or more, after the one before");
        schedule.push_back({from, parse_number(which, entry.substr(colon + 1), std::int64_t(1), kMany)});
        begin = end + 1;
    }
    return schedule;
}

std::size_t memory_bytes(const Options& o) {
    if (o.memory.empty()) return 0;
    constexpr std::string_view kUnits = "MGT";
    const auto unit = o.memory.find_first_not_of("0123456789.");
    const std::string rest = unit == std::string::npos ? "" : o.memory.substr(unit + 1);
    const auto power = unit == std::string::npos ? kUnits.npos : kUnits.find(o.memory[unit]);
    const bool has_unit = power != kUnits.npos && (rest.empty() || rest == "B" || rest == "iB");
    const double number = has_unit ? std::strtod(o.memory.substr(0, unit).c_str(), nullptr) : 0;
    require(number >= 0.01 && number <= 1e6, "--memory", in_quotes(o.memory),
            "a number from 0.01 to 1000000 with a unit, such as 80G, 512M or 1.5T");
    return std::size_t(std::ldexp(number, 20 + 10 * int(power)));
}

}  // namespace llmc
