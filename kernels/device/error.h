// error.h - the one kind of exception of the project: what is wrong, the value found, what was expected, how to mend
// it.
//
// Libraries throw it, or add to it and throw on; only main() prints it, on one line, and chooses the exit code.
#pragma once
#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

// What the user can mend before a run starts ends the program with exit code 2, what fails while it runs with 1.
enum class Blame { input, runtime };

class Error : public std::runtime_error {
public:
    explicit Error(const std::string& message, Blame blame = Blame::input)
        : std::runtime_error(message),
          blame_(blame) {}
    Blame blame() const { return blame_; }

private:
    Blame blame_;
};

// Text of a user or a file, as part of a message of one line: control characters as \x0a, the first 300 bytes of it.
inline std::string in_quotes(std::string_view text) {
    constexpr std::size_t kMost = 300, kLongestOfUtf8 = 4;
    std::size_t length = std::min(text.size(), kMost);
    if (length < text.size())  // no character of UTF-8 is cut
        while (length > kMost - kLongestOfUtf8 + 1 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80)
            --length;
    std::string quoted(1, '"');
    for (const char c : text.substr(0, length)) {
        const auto byte = static_cast<unsigned char>(c);
        constexpr std::string_view kDigits = "0123456789abcdef";
        if (byte < ' ' || byte == 127) (quoted.append("\\x") += kDigits[byte / 16]) += kDigits[byte % 16];
        else quoted += c;
    }
    return quoted.append(length < text.size() ? "..." : "").append(1, '"');
}

// "WHAT is VALUE; expected EXPECTED; MEND". An empty `mend` is left out.
template <class Value>
[[noreturn]] void fail(std::string_view what, const Value& value, std::string_view expected, std::string_view mend = {},
                       Blame blame = Blame::input) {
    std::ostringstream message;
    message.precision(10);
    message << what << " is " << value << "; expected " << expected;
    if (!mend.empty()) message << "; " << mend;
    throw Error(message.str(), blame);
}

template <class Value>
void require(bool holds, std::string_view what, const Value& value, std::string_view expected,
             std::string_view mend = {}) {
    if (!holds) fail(what, value, expected, mend);
}
