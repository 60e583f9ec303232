// option_table.h - the flags as a table, which parsing, --help, messages, files of options and the log are made from
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "llmc/run/options/options.h"

namespace llmc {

template <class Number>
struct Bounds {
    Number least, most;
    bool least_is_auto = false;  // 0 is written as auto
};

constexpr std::int64_t kMany = std::int64_t(1) << 40;  // more steps or tokens than any run has

using Whole = Bounds<std::int64_t>;
using Real = Bounds<double>;

// A field of an enumeration, read and set by name.
struct Choice {
    std::vector<std::string> names;
    std::function<std::string()> name;
    std::function<void(const std::string& flag, const std::string& name)> set;  // throws Error for an unknown name
};

// One flag. The values of a number are limited by Bounds.
struct Option {
    const char *group, *flag, *help;
    // of the Options that the table was made for
    std::variant<std::string*, std::vector<std::string>*, std::int64_t*, double*, bool*, Choice> field;
    std::variant<std::monostate, Whole, Real> limits;

    bool is_switch() const { return std::holds_alternative<bool*>(field); }
    bool is_list() const { return std::holds_alternative<std::vector<std::string>*>(field); }
};

// The table of flags for these options, in the order of --help.
std::vector<Option> option_table(Options& options);

// "--lr", from "l,lr".
std::string long_name(std::string_view flag);
// As they are parsed, at least one; a switch as "on" or "off".
std::vector<std::string> values_of(const Option& option);
// Sets the field. Throws Error that starts with `name` if a value is outside its limits, or there are several for a
// flag that takes one. Empty ones of a list are left out.
void set_values(const Option& option, const std::string& name, const std::vector<std::string>& values);

}  // namespace llmc
