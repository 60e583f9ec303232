// terminal.h - what somebody at a terminal reads: its width, text within it, long numbers, and a line that is written
// over
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmc {

// A line of what a run tells is no longer, wherever it goes.
inline constexpr int kLineColumns = 120;

// Columns of the terminal that stdout leads to; elsewhere those of $COLUMNS, else kLineColumns. At least 60.
int terminal_columns();

// "FIRST word word ..." in lines of at most kLineColumns, a blank between words, those after the first line below the
// first word; a word that is longer stands alone. Ends with the end of a line.
std::string wrapped(const std::string& first, const std::vector<std::string>& words);

// 124439808 as "124,439,808".
std::string with_commas(std::int64_t number);
// "1 token", "2,048 tokens", as counted.h has it.
std::string with_commas(std::int64_t number, const std::string& noun);

// One line on stderr's terminal that is written over, for work that would be silent for long; it goes with its owner.
// Where stderr leads elsewhere, as into a file, or to mpirun, nothing, or a line now and then.
class ProgressLine {
public:
    // shows: whether this process does, as one of many. seconds_elsewhere: from line to line; 0: none.
    explicit ProgressLine(bool shows = true, double seconds_elsewhere = 0);
    ~ProgressLine();
    ProgressLine(const ProgressLine&) = delete;
    ProgressLine& operator=(const ProgressLine&) = delete;

    double seconds() const;  // since it was made
    // On a terminal four times a second at most. Text need not be made in vain.
    bool due() const;
    void show(const std::string& text);
    // "validation 43 %, 0:12 left", where it is due; share: 0 to 1 of the work.
    void show_share(const std::string& work, double share);

private:
    bool terminal_;
    double apart_;  // seconds from one to the next; 0: nothing is shown
    double began_, last_;
};

}  // namespace llmc
