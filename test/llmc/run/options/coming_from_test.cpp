// coming_from_test.cpp - the flags and defaults in scripts/COMING_FROM.md are ours
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "llmc/run/options/command_line.h"
#include "test/support/pattern.h"
#include "test/support/scratch_folder.h"

namespace {

using Cells = std::vector<std::string>;

// The rows of all tables, without the separator lines.
std::vector<Cells> rows_of(const std::string& path) {
    std::ifstream in(path);
    REQUIRE(in);
    std::vector<Cells> rows;
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with('|') || line.starts_with("|--")) continue;
        std::istringstream cells(line.substr(1));
        rows.emplace_back();
        for (std::string cell; std::getline(cells, cell, '|');) {
            const auto first = cell.find_first_not_of(' '), last = cell.find_last_not_of(' ');
            rows.back().push_back(first == cell.npos ? "" : cell.substr(first, last - first + 1));
        }
    }
    return rows;
}

// The texts between backquotes.
Cells quoted(const std::string& cell) {
    static const test::Pattern pattern("`([^`]*)`");
    Cells found;
    for (const auto& match : pattern.matches(cell)) found.push_back(match[1]);
    return found;
}

// Whether it is the default in --help; "" for an empty text.
bool says(const std::string& cell, const nlohmann::json& value) {
    if (value.is_number()) return !cell.empty() && std::stod(cell) == value.get<double>();
    return cell == (value.is_boolean() ? (value.get<bool>() ? "on" : "off")
                    : value.is_string() ? value.get<std::string>() : value.dump());
}

}  // namespace

TEST_CASE("the tables that compare llm.c and nanoGPT have our flags and their defaults", "[options]") {
    const nlohmann::json defaults = llmc::to_json(llmc::RunSettings());
    const std::string help = llmc::help_text();
    std::set<std::string> theirs;
    int checked = 0;
    for (const Cells& row : rows_of("scripts/COMING_FROM.md")) {
        CAPTURE(row);
        REQUIRE(row.size() >= 4);
        for (const std::string& name : quoted(row[0])) theirs.insert(name);
        // The column of our flags precedes that of our defaults, in the short table too.
        const std::size_t here = row.size() == 5 ? 2 : 1;
        const Cells flags = quoted(row[here]);
        if (flags.empty()) continue;
        const std::string name = flags.back();
        REQUIRE(name.starts_with("--"));
        REQUIRE(defaults.contains(name.substr(2)));
        if (flags.size() == 2) CHECK(help.find(flags[0] + ", " + name) != help.npos);
        const Cells otherwise = quoted(row[here + 1]);
        if (otherwise.empty()) CHECK(row[here + 1] == "none");
        CHECK(says(otherwise.empty() ? "" : otherwise[0], defaults[name.substr(2)]));
        ++checked;
    }
    CHECK(checked >= 55);
    for (const char* flag : {"-i", "-j", "-e",  "-o",  "-lg", "-n",  "-nk", "-nm", "-y", "-b", "-t", "-d", "-x",
                             "-l", "-u", "-q",  "-c",  "-sl", "-sg", "-v",  "-m",  "-s", "-g", "-h", "-a", "-f",
                             "-w", "-z", "-ge", "-pn", "-pr", "-pg", "-pm", "-pi", "-pf", "-ps", "-k", "-r", "out_dir",
                             "init_from", "gradient_accumulation_steps", "min_lr", "dtype"}) {
        CAPTURE(flag);
        CHECK(theirs.contains(flag));
    }
}

TEST_CASE("README says what mpirun needs as root", "[options]") {
    const std::string readme = test::read_bytes("README.md");
    const auto section = readme.find("\n## Several ranks"), end = readme.find("\n## ", section + 1);
    CHECK(readme.substr(section, end - section).find("--allow-run-as-root") != readme.npos);
}
