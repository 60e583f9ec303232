// option.cpp - the values of flags as text and JSON
#include "llmc/base/option.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "llmc/base/json_text.h"
#include "llmc/base/number_text.h"
#include "llmc/base/utf8.h"
#include "llmc/base/value_text.h"

namespace llmc {

std::vector<std::string> values_of_setting(const std::string& what, const nlohmann::json& value) {
    if (value.is_array() && std::ranges::all_of(value, &nlohmann::json::is_string)) {
        std::vector<std::string> values;
        for (const auto& element : value) values.push_back(values_of_setting(what, element).front());
        return values;
    }
    if (value.is_string()) {
        auto text = value.get<std::string>();
        require(text.find('\0') == text.npos, what, in_quotes(text), "text without the character NUL");
        return {text};
    }
    require(value.is_number() || value.is_boolean(), what, excerpt(value),
            "text, a number, true or false; or for train-data and val-data a list of texts");
    return {text_of(value)};
}

std::string Option::name() const {
    const auto comma = flag.find(',');
    return comma == flag.npos ? flag : flag.substr(comma + 1);
}

bool Option::has_auto_value() const {
    if (const auto* const range = std::get_if<Real>(&limits))
        return range->has_auto && std::isnan(*std::get<double*>(field));
    const auto* const range = std::get_if<Whole>(&limits);
    return range && range->has_auto && *std::get<std::int64_t*>(field) == 0;
}

std::vector<std::string> Option::values() const {
    if (is_auto()) return {"auto"};
    return std::visit(
        []<class Field>(const Field& value) -> std::vector<std::string> {
            if constexpr (std::is_same_v<Field, Choice>) return {value.name()};
            else if constexpr (std::is_same_v<Field, std::string*>) return {*value};
            else if constexpr (std::is_same_v<Field, bool*>) return {*value ? "on" : "off"};
            else if constexpr (std::is_same_v<Field, std::vector<std::string>*>)
                return value->empty() ? std::vector<std::string>{""} : *value;
            else return {text_of_number(*value)};
        },
        field);
}

nlohmann::json Option::json() const {
    if (is_auto()) return "auto";
    return std::visit([]<class Field>(const Field& value) {
        if constexpr (std::is_same_v<Field, Choice>) return nlohmann::json(value.name());
        else if constexpr (std::is_same_v<Field, std::vector<std::string>*>)  // one is text, as in older versions
            return value->size() > 1 ? nlohmann::json(*value) : nlohmann::json(value->empty() ? "" : value->front());
        else return nlohmann::json(*value);
    }, field);
}

void Option::set(const std::string& what, const std::vector<std::string>& values) const {
    require(values.size() == 1 || is_list(), what, counted(std::int64_t(values.size()), "value"), "one value",
            "only train-data and val-data take lists");
    const auto checked = [&](const std::string& text) {
        require(valid_length(text) == text.size(), what, in_quotes(text), "UTF-8, as in the log and in checkpoints",
                "give a file or folder another name");
        return text;
    };
    if (is_list()) {
        auto& list = *std::get<std::vector<std::string>*>(field);
        list.clear();
        for (const std::string& text : values)
            if (!text.empty()) list.push_back(checked(text));
        return;
    }
    const std::string& value = values.front();
    const bool is_auto_value = decided && value == "auto";
    if (is_auto_value) decided->erase(name());
    const auto within = [&](const auto& range) { return parse_number(what, value, range.least, range.most); };
    const auto has_auto = [](const auto& range) {
        if constexpr (requires { range.has_auto; }) return range.has_auto;
        else return false;
    };
    if (is_auto_value && !std::visit(has_auto, limits)) return;
    if (auto* const* whole = std::get_if<std::int64_t*>(&field)) {
        const Whole& range = std::get<Whole>(limits);
        **whole = range.has_auto ? number_or_auto<std::int64_t>(what, value, 0, 1, range.most) : within(range);
    } else if (auto* const* real = std::get_if<double*>(&field)) {
        const Real& range = std::get<Real>(limits);
        **real = range.has_auto ? number_or_auto<double>(what, value, NAN, range.least, range.most) : within(range);
    } else if (auto* const* is_set = std::get_if<bool*>(&field)) {
        const auto given = switch_value(value);
        require(given.has_value(), what, in_quotes(value), decided ? "true, false or auto" : "true or false");
        **is_set = *given;
    } else if (const auto* const choice = std::get_if<Choice>(&field)) {
        choice->set(what, value);
    } else {
        *std::get<std::string*>(field) = checked(value);
    }
    if (decided && !is_auto_value) decided->insert(name());
}

void Option::take(const nlohmann::json& options, const std::string& file) const {
    const std::string key = name(), what = file + ": " + key;
    if (const auto found = options.find(key); found != options.end()) set(what, values_of_setting(what, *found));
}

const Option& OptionList::operator[](std::string_view name) const {
    return *std::ranges::find(options, name, &Option::name);
}

bool OptionList::is_met(const Needs& needs) const {
    if (needs.name.empty()) return true;
    const std::string value = (*this)[needs.name].values().front();
    return value == "auto" || needs.value == "above 0" ? value != "0" : value == needs.value;
}

void OptionList::add(Option option) {
    const auto place = [&](const Option& of) { return std::ranges::find(groups_, of.group) - groups_.begin(); };
    options.insert(std::ranges::upper_bound(options, place(option), {}, place), std::move(option));
}

}  // namespace llmc
