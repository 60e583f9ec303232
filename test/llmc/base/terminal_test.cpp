// terminal_test.cpp - word wrapping, the terminal's width, and the progress line
#include "llmc/base/terminal.h"

#include <algorithm>
#include <pty.h>
#include <sys/ioctl.h>

#include <cstdlib>

#include "test/support/scratch_folder.h"

using namespace llmc;
using namespace test;

namespace {

// The output of `work` on descriptor `stream`, redirected to a terminal with this number of columns.
template <class Work>
std::string on_terminal(int stream, unsigned short columns, Work&& work) {
    int master = -1, slave = -1;
    const winsize size{.ws_row = 24, .ws_col = columns};
    REQUIRE(openpty(&master, &slave, nullptr, nullptr, &size) == 0);
    const int before = dup(stream);
    dup2(slave, stream);
    close(slave);
    work();
    dup2(before, stream);
    close(before);
    std::string text;
    char part[4096];  // read() fails once all other descriptors of the terminal are closed
    for (ssize_t bytes; (bytes = read(master, part, sizeof part)) > 0;) text.append(part, std::size_t(bytes));
    close(master);
    return text;
}

}  // namespace

TEST_CASE("words are wrapped below the first one", "[terminal]") {
    CHECK(wrapped("options:", {"--a", "--b"}) == "options: --a --b\n");
    CHECK(wrapped("options:", {}) == "options:\n");
    const std::string fifty(50, 'x'), long_one(200, 'y');
    CHECK(wrapped("of:", {fifty, fifty, fifty}) == "of: " + fifty + ' ' + fifty + "\n    " + fifty + '\n');
    CHECK(wrapped("of:", {"a", long_one, "b"}) == "of: a\n    " + long_one + "\n    b\n");
    CHECK(wrapped("of:", {std::string(116, 'x')}).size() == 121);
    CHECK(wrapped("of:", {std::string(114, 'x'), "y"}).size() == 121);       // 120 and its end
    CHECK(wrapped("of:", {std::string(115, 'x'), "y"}).find('\n') == 119);
}

TEST_CASE("the width comes from the terminal, else from COLUMNS, else it is 120", "[terminal]") {
    int columns = 0;
    const auto ask = [&] { columns = terminal_columns(); };
    for (const auto& [given, expected] : {std::pair{"200", 200}, {"20", 60}, {"wide", 120}, {"", 120}, {"0", 120}}) {
        CAPTURE(given);
        setenv("COLUMNS", given, 1);
        written_to(STDOUT_FILENO, ask);
        CHECK(columns == expected);
    }
    setenv("COLUMNS", "200", 1);
    on_terminal(STDOUT_FILENO, 90, ask);
    CHECK(columns == 90);
    on_terminal(STDOUT_FILENO, 0, ask);  // some terminals report 0
    CHECK(columns == 200);
    unsetenv("COLUMNS");
    written_to(STDOUT_FILENO, ask);
    CHECK(columns == 120);
}

TEST_CASE("progress is shown on a terminal, at most four times a second, and erased", "[terminal]") {
    double seconds = 0;
    const auto work = [&](bool shows) {
        return [&seconds, shows] {
            ProgressLine line(shows);
            for (int i = 0; i < 20; ++i) line.show_share("validation", 0.1);  // most or all of them before it is due
            usleep(260000);
            for (int i = 0; i < 20; ++i) line.show_share("validation", 0.25);
            seconds = line.seconds();
        };
    };
    const std::string shown = on_terminal(STDERR_FILENO, 80, work(true));
    CAPTURE(shown, seconds);
    CHECK_THAT(shown, Matches("(\r\x1b\\[Kvalidation (10|25) %, 0:[0-9]{2} left)+\r\x1b\\[K"));
    CHECK_THAT(shown, Contains("validation 25 %"));
    CHECK(double(std::count(shown.begin(), shown.end(), 'v')) <= seconds / 0.25);
    CHECK(on_terminal(STDERR_FILENO, 80, work(false)).empty());
    CHECK(written_to(STDERR_FILENO, work(true)).empty());
    const std::string lines = written_to(STDERR_FILENO, [] {
        ProgressLine line(true, 0.01);
        usleep(20000);
        line.show_share("validation", 0.5);
    });
    CHECK_THAT(lines, Matches("validation 50 %, 0:[0-9]{2} left\n"));
    CHECK(on_terminal(STDERR_FILENO, 80, [] { ProgressLine line; }).empty());
}
