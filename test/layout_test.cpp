// layout_test.cpp - the house itself: includes run one way, no file leads back to itself, what newer compilers do not
// bring along is included, no line is longer than 120 columns
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using Strings = std::vector<std::string>;
using Includes = std::map<std::string, Strings>;  // of every file, those of the project

// From the ground up. A file includes its own wing and those of lower floors, so wings of one floor do not know each
// other.
const std::vector<Strings> kFloors = {
    {"kernels/device"},
    {"kernels/simt"},
    {"kernels"},
    {"kernels/attention", "kernels/matmul"},
    {"llmc/base"},
    {"llmc/comm", "llmc/data", "llmc/weights"},
    {"llmc/model"},
    {"llmc/run/evaluation", "llmc/run/options"},
    {"llmc/run/log"},
    {"llmc/run/checkpoint"},
    {"llmc/run/control"},
    {"llmc/run/start"},
    {"train_gpt2.cu"},
    {"test", "dev"},
};

struct Place {
    int floor = -1;
    std::string wing;
};

// The wing with the longest name that `path` begins with.
Place place_of(const std::string& path) {
    Place place;
    for (int floor = 0; floor < int(kFloors.size()); ++floor)
        for (const std::string& wing : kFloors[std::size_t(floor)])
            if ((path == wing || path.starts_with(wing + "/")) && wing.size() > place.wing.size())
                place = {floor, wing};
    return place;
}

// What is wrong with the arrows, a line each.
Strings wrong_arrows(const Includes& includes) {
    Strings wrong;
    for (const auto& [file, included] : includes) {
        const Place from = place_of(file);
        if (from.floor < 0) wrong.push_back(file + " lies in no wing");
        for (const std::string& other : included) {
            const Place to = place_of(other);
            const bool outside_product = to.wing == "test" || to.wing == "dev";
            const bool kernel = file.ends_with(".cu") || file.ends_with(".cuh") || from.wing == "kernels/simt";
            if (!includes.contains(other)) wrong.push_back(file + " includes " + other + ", which is not there");
            else if (to.floor > from.floor || (to.floor == from.floor && to.wing != from.wing && !outside_product))
                wrong.push_back(file + " includes " + other + ", which lies above or beside it");
            else if (to.wing == "kernels/simt" && !kernel && from.wing != "test")
                wrong.push_back(file + " includes " + other + ", which is for kernels");
        }
    }
    return wrong;
}

// The first circle found, as "a -> b -> a"; empty if there is none.
std::string circle(const Includes& includes) {
    std::set<std::string> finished;
    Strings path;
    const auto visit = [&](const auto& self, const std::string& file) -> std::string {
        if (const auto again = std::find(path.begin(), path.end(), file); again != path.end()) {
            std::string text;
            for (auto step = again; step != path.end(); ++step) text += *step + " -> ";
            return text + file;
        }
        const auto found = includes.find(file);
        if (finished.contains(file) || found == includes.end()) return "";
        path.push_back(file);
        for (const std::string& other : found->second)
            if (const std::string text = self(self, other); !text.empty()) return text;
        path.pop_back();
        finished.insert(file);
        return "";
    };
    for (const auto& [file, included] : includes)
        if (const std::string text = visit(visit, file); !text.empty()) return text;
    return "";
}

// Of the project's own folders, and its files beside them.
Strings files_of_project() {
    Strings files = {"CONTRIBUTING.md", "Makefile", "README.md", "train_gpt2.cu"};
    for (const char* folder : {"kernels", "llmc", "test", "dev", "scripts"})
        for (const auto& entry : fs::recursive_directory_iterator(folder))
            if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    return files;
}

bool ends_with_any(const std::string& path, const Strings& ends) {
    return std::any_of(ends.begin(), ends.end(), [&](const std::string& end) { return path.ends_with(end); });
}

Includes includes_of_project() {
    static const std::regex pattern("^ *#include \"([^\"]+)\"");
    Includes includes;
    for (const std::string& file : files_of_project()) {
        if (!ends_with_any(file, {".h", ".cpp", ".cu", ".cuh"})) continue;
        std::ifstream in(file);
        Strings& included = includes[file];
        std::smatch match;
        for (std::string line; std::getline(in, line);)
            if (std::regex_search(line, match, pattern)) included.push_back(match[1]);
    }
    return includes;
}

// Whether `file` includes <cstdint>, or what it includes of the project does.
bool has_fixed_integers(const Includes& includes, const std::set<std::string>& have, const std::string& file) {
    if (have.contains(file)) return true;
    const auto found = includes.find(file);
    return found != includes.end() && std::ranges::any_of(found->second, [&](const std::string& other) {
        return has_fixed_integers(includes, have, other);
    });
}

std::size_t columns(const std::string& line) {  // of UTF-8: bytes that continue a character take no column
    return std::size_t(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

TEST_CASE("includes run one way, from what is built to what it is built of", "[layout]") {
    const Includes includes = includes_of_project();
    REQUIRE(includes.size() > 200);  // run in the folder of the project
    CHECK(wrong_arrows(includes) == Strings{});
    CHECK(circle(includes) == "");
}

TEST_CASE("an arrow back, beside or into a file that is not there is found, and so is a circle", "[layout]") {
    const Includes good = {{"kernels/device/a.h", {}},
                           {"kernels/simt/s.h", {"kernels/device/a.h"}},
                           {"kernels/k.cu", {"kernels/simt/s.h", "kernels/device/a.h"}},
                           {"llmc/data/d.h", {"kernels/device/a.h"}},
                           {"llmc/comm/c.h", {"kernels/device/a.h"}},
                           {"llmc/run/options/o.h", {"llmc/data/d.h"}},
                           {"llmc/run/evaluation/e.h", {"llmc/comm/c.h"}},
                           {"llmc/run/log/l.h", {"llmc/run/options/o.h", "llmc/run/evaluation/e.h"}},
                           {"llmc/run/control/r.h", {"llmc/data/d.h", "llmc/comm/c.h", "llmc/run/log/l.h"}},
                           {"test/t.cpp", {"llmc/run/control/r.h", "dev/b.h", "kernels/simt/s.h"}},
                           {"dev/b.h", {"test/u.h"}},
                           {"test/u.h", {}}};
    CHECK(wrong_arrows(good) == Strings{});
    CHECK(circle(good) == "");
    const auto with = [&](const std::string& file, const std::string& other) {
        Includes bad = good;
        bad[file].push_back(other);
        return bad;
    };
    const auto only_fault = [&](const std::string& file, const std::string& other) {
        const Strings wrong = wrong_arrows(with(file, other));
        REQUIRE(wrong.size() == 1);
        return wrong[0];
    };
    CHECK_THAT(only_fault("kernels/k.cu", "llmc/data/d.h"), Contains("above or beside"));
    CHECK_THAT(only_fault("kernels/device/a.h", "kernels/simt/s.h"), Contains("above or beside"));
    CHECK_THAT(only_fault("llmc/data/d.h", "llmc/run/control/r.h"), Contains("above or beside"));
    CHECK_THAT(only_fault("llmc/data/d.h", "llmc/comm/c.h"), Contains("above or beside"));
    CHECK_THAT(only_fault("llmc/run/control/r.h", "test/u.h"), Contains("above or beside"));
    CHECK_THAT(only_fault("llmc/run/control/r.h", "kernels/simt/s.h"), Contains("for kernels"));
    CHECK_THAT(only_fault("llmc/run/control/r.h", "llmc/run/control/gone.h"), Contains("not there"));
    CHECK_THAT(only_fault("llmc/run/options/o.h", "llmc/run/evaluation/e.h"), Contains("above or beside"));
    CHECK_THAT(only_fault("llmc/run/log/l.h", "llmc/run/control/r.h"), Contains("above or beside"));
    CHECK(wrong_arrows({{"llmc/other.h", {}}}) == Strings{"llmc/other.h lies in no wing"});
    CHECK(wrong_arrows({{"llmc/run/other.h", {}}}) == Strings{"llmc/run/other.h lies in no wing"});
    CHECK(circle(with("kernels/device/a.h", "kernels/device/a.h")) == "kernels/device/a.h -> kernels/device/a.h");
    Includes two = with("llmc/run/control/r.h", "llmc/run/control/q.h");
    two["llmc/run/control/q.h"] = {"llmc/run/control/r.h"};
    CHECK(wrong_arrows(two) == Strings{});
    CHECK(circle(two) == "llmc/run/control/q.h -> llmc/run/control/r.h -> llmc/run/control/q.h");
}

// Headers of g++ 12 include <cstdint> for themselves, those of g++ 13 do not.
TEST_CASE("what names an integer of a fixed size includes <cstdint>", "[layout]") {
    const Includes includes = includes_of_project();
    const std::regex include("^#include <(cstdint|stdint\\.h)>"), name("std::u?int(8|16|32|64|ptr)_t");
    std::set<std::string> have, need;
    for (const auto& [file, included] : includes) {
        std::ifstream in(file);
        for (std::string line; std::getline(in, line);) {
            if (std::regex_search(line, include)) have.insert(file);
            if (std::regex_search(line.substr(0, line.find("//")), name)) need.insert(file);
        }
    }
    REQUIRE(need.size() > 100);
    for (const std::string& file : need)
        if (!has_fixed_integers(includes, have, file)) FAIL_CHECK(file << " does not include <cstdint>");
}

TEST_CASE("lines have at most 120 columns, and every source file opens by saying what it is", "[layout]") {
    const Strings sources = {".h", ".cpp", ".cu", ".cuh"};
    const Strings others = {".sh", ".sbatch", ".py", ".md", "Makefile", "dev/plot", "dev/watch",
                            "dev/data/prepare"};
    for (const std::string& file : files_of_project()) {
        const bool source = ends_with_any(file, sources);
        if ((!source && !ends_with_any(file, others)) || file.starts_with("dev/results/")) continue;
        std::ifstream in(file);
        int number = 0;
        for (std::string line; std::getline(in, line);) {
            ++number;
            if (columns(line) > 120) FAIL_CHECK(file << ':' << number << " has " << columns(line) << " columns");
            const std::string opening = "// " + fs::path(file).filename().string() + " - ";
            if (source && number == 1 && !line.starts_with(opening))
                FAIL_CHECK(file << " does not open with " << opening);
        }
    }
}
