// error.h - the project's exception: what is wrong, the value found, the value expected, and how to fix it
//
// Library code throws it, or adds context and rethrows it; only main() prints it, on one line, and sets the exit code.
#pragma once
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/base/namespace.h"

namespace base {

// input: the user can fix it before a run starts; exit code 2. runtime: a failure during the run; exit code 1.
enum class Blame { input, runtime };

// Control characters, also those of a user's text in a message, become \x0a.
inline std::string on_one_line(std::string_view text) {
    std::string line;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        constexpr std::string_view kDigits = "0123456789abcdef";
        if (byte < ' ' || byte == 127) (line.append("\\x") += kDigits[byte / 16]) += kDigits[byte % 16];
        else line += c;
    }
    return line;
}

class Error : public std::runtime_error {
public:
    explicit Error(const std::string& message, Blame blame = Blame::input)
        : std::runtime_error(on_one_line(message)),
          blame_(blame) {}
    Blame blame() const { return blame_; }

private:
    Blame blame_;
};

// The text of an exception for a user: the library's word for exhausted memory, "std::bad_alloc", says nothing.
inline std::string message_of(const std::exception& error) {
    if (!dynamic_cast<const std::bad_alloc*>(&error)) return on_one_line(error.what());
    return "host memory is exhausted; expected room for another allocation; free memory, or raise the limits of this "
           "process (ulimit -v, ulimit -d, or its container's)";
}

// Quotes text from a user or a file for an Error's message, cut to 300 bytes.
inline std::string in_quotes(std::string_view text) {
    constexpr std::size_t kMaxBytes = 300, kMaxUtf8Bytes = 4;
    std::size_t length = text.size() < kMaxBytes ? text.size() : kMaxBytes;
    if (length < text.size())  // do not cut within a UTF-8 character
        while (length > kMaxBytes - kMaxUtf8Bytes + 1 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80)
            --length;
    return '"' + std::string(text.substr(0, length)) + (length < text.size() ? "...\"" : "\"");
}

// Formats a value for a message: text unchanged, a number with at most 10 significant digits. Without <sstream>, which
// every file that includes this header would have to compile.
template <class Value>
std::string text_in_message(const Value& value) {
    if constexpr (std::is_floating_point_v<Value>) {
        char digits[32];
        std::snprintf(digits, sizeof digits, "%.10g", double(value));
        return digits;
    } else if constexpr (std::is_integral_v<Value> && !std::is_same_v<Value, char>) return std::to_string(value);
    else if constexpr (std::is_pointer_v<Value> && !std::is_convertible_v<Value, std::string_view>) {
        char address[32];
        std::snprintf(address, sizeof address, "%p", static_cast<const void*>(value));
        return address;
    } else return std::string(std::string_view(value));
}

// Throws "WHAT is VALUE; expected EXPECTED; HINT". An empty `hint` is omitted.
template <class Value>
[[noreturn]] void fail(std::string_view what, const Value& value, std::string_view expected, std::string_view hint = {},
                       Blame blame = Blame::input) {
    std::string message(what);
    message.append(" is ").append(text_in_message(value)).append("; expected ").append(expected);
    if (!hint.empty()) message.append("; ").append(hint);
    throw Error(message, blame);
}

template <class Value>
void require(bool holds, std::string_view what, const Value& value, std::string_view expected,
             std::string_view hint = {}) {
    if (!holds) fail(what, value, expected, hint);
}

// Throws Error unless `value` is a positive multiple of `of`.
template <class Number>
void require_multiple(std::string_view what, Number value, std::size_t of) {
    require(value > 0 && std::size_t(value) % of == 0, what, value, "a positive multiple of " + std::to_string(of));
}

// Throws Error unless an array has at least `least` elements. `formula`: where the number comes from, such as "rows *
// channels".
template <class Array>
void require_size(std::string_view what, const Array& array, std::size_t least, std::string_view formula = {},
                  std::string_view hint = {}) {
    if (array.size() >= least) return;
    const std::string number = std::to_string(least);
    fail("the size of " + std::string(what), array.size(),
         "at least " + (formula.empty() ? number : std::string(formula) + " = " + number), hint);
}

}  // namespace base
