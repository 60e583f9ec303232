// option.h - a flag of the command line, and a list of flags: code of every layer can add its own
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "llmc/base/names.h"

namespace llmc {

template <class Number>
struct Bounds {
    Number least, most;
    bool has_auto = false;  // written as auto: 0, or of a real number NaN
};

constexpr std::int64_t kMany = std::int64_t(1) << 40;  // more steps or tokens than any run has

using Whole = Bounds<std::int64_t>;
using Real = Bounds<double>;

// A field that has one of the values of a table, read and set by name.
struct Choice {
    template <class Value, std::size_t N>
    Choice(Value& field, const Named<Value> (&table)[N])
        : names(names_of(table)),
          name([&] { return name_of(field, table); }),
          set([&](const std::string& flag, const std::string& to) { field = value_by_name(flag, to, table); }) {}

    std::vector<std::string> names;
    std::function<std::string()> name;
    std::function<void(const std::string& flag, const std::string& name)> set;  // throws Error for an unknown name
};

// One flag. The values of a number are limited by Bounds.
struct Option {
    std::string group, flag, help;
    std::variant<std::string*, std::vector<std::string>*, std::int64_t*, double*, bool*, Choice> field;
    std::variant<std::monostate, Whole, Real> limits{};

    bool is_switch() const { return std::holds_alternative<bool*>(field); }
    bool is_list() const { return std::holds_alternative<std::vector<std::string>*>(field); }
};

// In the order of --help. It is a list, so that the code that reads it is compiled once instead of once per flag.
struct OptionList {
    std::vector<Option> options{};
    std::string group{};  // of --help, for the next flags

    // With Bounds for a number, or the table of names for a choice. It comes last in its group.
    template <class Field, class... Limits>
    void entry(const char* flag, Field& field, const std::string& help, const Limits&... limits) {
        const auto last = std::ranges::find(options.rbegin(), options.rend(), group, &Option::group);
        const auto at = last == options.rend() ? options.end() : last.base();
        if constexpr ((std::is_array_v<Limits> || ...))
            options.insert(at, {group, flag, help, Choice(field, limits...)});
        else
            options.insert(at, {group, flag, help, &field, limits...});
    }
};

}  // namespace llmc
