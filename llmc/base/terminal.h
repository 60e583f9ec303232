// terminal.h - terminal output: width, word wrapping, and a progress line
#pragma once
#include <string>
#include <vector>

namespace llmc {

// The longest line that a run prints, to a terminal or a file.
inline constexpr int kLineColumns = 120;

// Columns of the terminal on stdout; without one $COLUMNS, or kLineColumns if that is not set. At least 60.
int terminal_columns();

// "FIRST word word ..." in lines of at most kLineColumns, with a space between words; further lines are indented to the
// first word. A word longer than a line gets its own line. Ends with a newline.
std::string wrapped(const std::string& first, const std::vector<std::string>& words);

// Quoted for a shell if needed, on one line.
std::string for_shell(const std::string& text);

// A line on stderr's terminal that is overwritten during long work; the destructor erases it. If stderr is not a
// terminal, such as a file or mpirun's pipe, it prints nothing, or a line at an interval.
class ProgressLine {
public:
    // shows: whether this process prints (one of the ranks does). seconds_elsewhere: the interval between lines where
    // stderr is not a terminal; 0: none.
    explicit ProgressLine(bool shows = true, double seconds_elsewhere = 0);
    ~ProgressLine();
    ProgressLine(const ProgressLine&) = delete;
    ProgressLine& operator=(const ProgressLine&) = delete;

    double seconds() const;  // since construction
    // Whether to call show() now: at most four times a second on a terminal. Saves composing text that is not shown.
    bool due() const;
    void show(const std::string& text);
    // "validation 43 %, 0:12 left", if due; share: the part of the work that is done, 0 to 1.
    void show_share(const std::string& work, double share);

private:
    bool terminal_;
    double interval_;  // seconds between two lines; 0: nothing is shown
    double began_, last_;
};

}  // namespace llmc
