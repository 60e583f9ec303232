// option.h - a flag of the command line, and a list of flags, to which every component adds its own
//
// A component has a struct of settings and a function add_options(OptionList&, settings&), which adds a row for each
// flag, and checks of several of them. --help, parsing, messages, files of options, the log, the comparison of ranks,
// and what a resumed run may change are made from the rows.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
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

// What a resumed run may do with a flag: give another value; none; it never takes it from its checkpoint.
enum class OnResume { may_change, same, of_one_start };
// Whether all ranks must have the same value.
enum class OnRanks { all_equal, of_the_host };
// Flags of the same quantity in different units: a source that sets one replaces the others of earlier sources.
struct Quantity {
    std::string name{};
};
// The flag has an effect only if the one with this long name has this value; "above 0": a number above 0. A source
// that gives that one another value sets this one to its default, unless it gives it, too.
struct Needs {
    std::string name{}, value{};
};

// Its default is auto: the run chooses what nothing gives (run/start/choice.h). Until then the field has another value.
struct ByRun {};
using Decided = std::set<std::string>;  // the flags among them, by long name, that have a value

// One flag. The values of a number are limited by Bounds.
struct Option {
    std::string group, flag, help;
    std::variant<std::string*, std::vector<std::string>*, std::int64_t*, double*, bool*, Choice> field{};
    std::variant<std::monostate, Whole, Real> limits{};
    OnResume resume{};
    OnRanks ranks{};
    Quantity quantity{};
    Needs needs{};
    Decided* decided = nullptr;  // of a flag that the run chooses

    std::string name() const;                 // the long name, without dashes
    bool is_left_to_run() const { return decided && !decided->contains(name()); }
    std::vector<std::string> values() const;  // as they are parsed, at least one; a switch as "on" or "off"
    nlohmann::json json() const;
    // Sets the field. Throws Error that starts with `what` if a value is outside the limits, or there are several for a
    // flag that takes one. Empty ones of a list are left out.
    void set(const std::string& what, const std::vector<std::string>& values) const;
    // The value with its name in an object of options, if that has one; `file` is where that is.
    void take(const nlohmann::json& options, const std::string& file) const;
    bool is_auto() const { return is_left_to_run() || has_auto_value(); }
    bool has_auto_value() const;  // the field itself

    bool is_text() const { return std::holds_alternative<std::string*>(field); }
    bool is_switch() const { return std::holds_alternative<bool*>(field); }
    bool is_list() const { return std::holds_alternative<std::vector<std::string>*>(field); }
};

// The rows of all components. It is a list, so that the code that reads it is compiled once instead of once per flag.
struct OptionList {
    std::vector<Option> options{};  // in the order of --help: groups, then as they were added
    std::vector<std::function<void()>> checks{};  // of several flags of one component; each throws Error
    Decided* decided = nullptr;  // of flags that the run chooses; null: their fields have their values

    // Of the next flags: their group of --help, of those that order_of_groups() names; what they need.
    void group(const std::string& in) { group_ = in; }
    void need(const Needs& needs = {}) { needs_ = needs; }
    void order_of_groups(const std::vector<std::string>& groups) { groups_ = groups; }
    void check(std::function<void()> throws) { checks.push_back(std::move(throws)); }

    // Columns: Bounds for a number, the table of names for a choice, and what differs from the first value of an enum
    // above. It comes last in its group.
    template <class Field, class... Columns>
    void entry(const char* flag, Field& field, const std::string& help, const Columns&... columns) {
        Option option{.group = group_, .flag = flag, .help = help, .needs = needs_};
        if constexpr (!(std::is_array_v<Columns> || ...)) option.field = &field;
        [[maybe_unused]] const auto set = [&]<class Column>(const Column& column) {
            if constexpr (std::is_array_v<Column>) option.field = Choice(field, column);
            else if constexpr (std::is_same_v<Column, OnResume>) option.resume = column;
            else if constexpr (std::is_same_v<Column, OnRanks>) option.ranks = column;
            else if constexpr (std::is_same_v<Column, Quantity>) option.quantity = column;
            else if constexpr (std::is_same_v<Column, ByRun>) option.decided = decided;
            else option.limits = column;
        };
        (set(columns), ...);
        add(std::move(option));
    }

    // The flag with this long name without dashes, which must exist.
    const Option& operator[](std::string_view name) const;
    bool is_met(const Needs& needs) const;  // also by a flag that is auto: the run chooses what is needed

private:
    void add(Option option);

    std::vector<std::string> groups_{};
    std::string group_{};
    Needs needs_{};
};

// Values as on a command line. Throws Error that names `what` unless it is text, a number, true, false, or a list of
// texts.
std::vector<std::string> values_of_setting(const std::string& what, const nlohmann::json& value);

}  // namespace llmc
