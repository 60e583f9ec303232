// terminal.cpp - terminal width, word wrapping, and a progress line that is erased
#include "llmc/base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "llmc/base/clock.h"
#include "llmc/base/number_text.h"
#include "llmc/base/standard_streams.h"
#include "llmc/base/value_text.h"

namespace llmc {
namespace {

constexpr double kSecondsBetweenShows = 0.25;

// UTF-8 continuation bytes take no column.
int columns_of(std::string_view text) {
    return int(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

int terminal_columns() {
    constexpr int kLeast = 60;
    if (winsize size{}; isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return std::max(int(size.ws_col), kLeast);
    if (const char* const columns = std::getenv("COLUMNS"))
        if (const auto number = number_of<int>(columns); number && *number > 0) return std::max(*number, kLeast);
    return kLineColumns;
}

std::string wrapped(const std::string& first, const std::vector<std::string>& words) {
    const int indent = columns_of(first) + 1;
    std::string text = first;
    int column = indent - 1;
    for (const std::string& word : words) {
        if (column >= indent && column + 1 + columns_of(word) > kLineColumns) {
            text += '\n' + std::string(std::size_t(indent), ' ');
            column = indent;
        } else {
            text += ' ';
            ++column;
        }
        text += word;
        column += columns_of(word);
    }
    return text + '\n';
}

ProgressLine::ProgressLine(bool shows, double seconds_elsewhere)
    : terminal_(isatty(STDERR_FILENO) != 0),
      interval_(!shows ? 0 : terminal_ ? kSecondsBetweenShows : seconds_elsewhere),
      began_(seconds_now()),
      last_(began_) {}

ProgressLine::~ProgressLine() {
    if (terminal_ && last_ != began_) std::cerr << "\r\x1b[K" << std::flush;
}

double ProgressLine::seconds() const { return seconds_now() - began_; }

bool ProgressLine::due() const { return interval_ > 0 && seconds_now() - last_ >= interval_; }

void ProgressLine::show(const std::string& text) {
    if (interval_ == 0) return;
    last_ = seconds_now();
    if (terminal_) std::cerr << "\r\x1b[K" + text << std::flush;
    else print_stderr(text);
}

void ProgressLine::show_share(const std::string& work, double share) {
    if (!due()) return;
    const std::string left = share > 0 ? ", " + clock_text(seconds() * (1 / share - 1)) + " left" : "";
    show(work + ' ' + std::to_string(int(100 * share)) + " %" + left);
}

std::string for_shell(const std::string& text) {
    constexpr std::string_view kPlain = "_./:=,+-%@";
    const auto is_plain = [&](unsigned char c) { return std::isalnum(c) || kPlain.find(char(c)) != kPlain.npos; };
    if (!text.empty() && std::ranges::all_of(text, is_plain)) return text;
    const auto is_control = [](unsigned char c) { return std::iscntrl(c) != 0; };
    const bool escaped = std::ranges::any_of(text, is_control);  // bash's $'...'
    std::string quoted = escaped ? "$'" : "'";
    for (const char c : text) {
        if (is_control(static_cast<unsigned char>(c))) quoted += format("\\x%02x", static_cast<unsigned char>(c));
        else if (c == '\'') quoted += escaped ? "\\'" : "'\\''";
        else quoted += escaped && c == '\\' ? "\\\\" : std::string(1, c);
    }
    return quoted + '\'';
}

}  // namespace llmc
