// names.h - an enumeration's values with their command-line names: one table for --help, parsing and error messages
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "llmc/base/did_you_mean.h"

namespace llmc {

template <class Value>
using Named = std::pair<std::string_view, Value>;

template <class Value, std::size_t N>
std::vector<std::string> names_of(const Named<Value> (&table)[N]) {
    std::vector<std::string> names;
    for (const auto& entry : table) names.emplace_back(entry.first);
    return names;
}

// "none, gelu or block"
inline std::string list_names(const std::vector<std::string>& names) {
    std::string list;
    for (std::size_t i = 0; i < names.size(); ++i)
        list += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + names[i];
    return list;
}

// Throws Error that names the flag and the known names.
template <class Value, std::size_t N>
Value value_by_name(std::string_view flag, std::string_view name, const Named<Value> (&table)[N]) {
    for (const auto& [known, value] : table)
        if (name == known) return value;
    const std::vector<std::string> known = names_of(table);
    fail(flag, '"' + std::string(name) + '"', list_names(known), did_you_mean(name, known));
}

// The name of a value in the table.
template <class Value, std::size_t N>
std::string name_of(Value wanted, const Named<Value> (&table)[N]) {
    for (const auto& [name, value] : table)
        if (value == wanted) return std::string(name);
    fail("a value", "in no table of names", list_names(names_of(table)));
}

}  // namespace llmc
