// layout_test.cpp - checks of the source tree: include direction, headers that newer compilers require, lines of at
// most 120 columns, scripts that can be executed
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "test/support/catch.h"
#include "test/support/pattern.h"

namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;
using Includes = std::map<std::string, Strings>;  // project headers that each file includes

// Layers from the bottom up. A file includes its own folder and folders of lower layers, so folders of the same layer
// do not depend on each other.
const std::vector<Strings> kLayers = {
    {"kernels/base"},
    {"kernels/device"},
    {"kernels/simt"},
    {"kernels"},
    {"kernels/attention", "kernels/matmul"},
    {"llmc/base"},
    {"llmc/comm", "llmc/data", "llmc/weights"},
    {"llmc/model", "llmc/text"},
    {"llmc/run/evaluation"},
    {"llmc/run/log"},
    {"llmc/run/checkpoint"},
    {"llmc/run/control"},
    {"llmc/run/options"},
    {"llmc/run/start"},
    {"llmc/run/loop"},
    {"train_gpt2.cu"},
    {"test", "dev", "scripts"},
};

struct Position {
    int layer = -1;
    std::string folder;
};

// The folder of kLayers with the longest name that is a prefix of `path`.
Position position_of(const std::string& path) {
    Position position;
    for (int layer = 0; layer < int(kLayers.size()); ++layer)
        for (const std::string& folder : kLayers[std::size_t(layer)])
            if ((path == folder || path.starts_with(folder + "/")) && folder.size() > position.folder.size())
                position = {layer, folder};
    return position;
}

// One line per include that violates the layers.
Strings wrong_includes(const Includes& includes) {
    Strings wrong;
    for (const auto& [file, included] : includes) {
        const Position from = position_of(file);
        if (from.layer < 0) wrong.push_back(file + " is in no layer");
        for (const std::string& other : included) {
            const Position to = position_of(other);
            const bool outside_product = to.folder == "test" || to.folder == "dev";
            const bool kernel = file.ends_with(".cu") || file.ends_with(".cuh") || from.folder == "kernels/simt";
            if (!includes.contains(other)) wrong.push_back(file + " includes " + other + ", which does not exist");
            else if (to.layer > from.layer || (to.layer == from.layer && to.folder != from.folder && !outside_product))
                wrong.push_back(file + " includes " + other + ", which is above it or in its layer");
            else if (to.folder == "kernels/simt" && !kernel && from.folder != "test")
                wrong.push_back(file + " includes " + other + ", which is for kernels");
        }
    }
    return wrong;
}

// All files of the project's folders, and the files next to them.
Strings files_of_project() {
    Strings files = {"CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "README.md", "config.mk", "train_gpt2.cu"};
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
    static const test::Pattern pattern("^ *#include \"([^\"]+)\"");
    Includes includes;
    for (const std::string& file : files_of_project()) {
        if (!ends_with_any(file, {".h", ".cpp", ".cu", ".cuh"})) continue;
        std::ifstream in(file);
        Strings& included = includes[file];
        for (std::string line; std::getline(in, line);)
            for (const auto& match : pattern.matches(line)) included.push_back(match[1]);
    }
    return includes;
}

// Whether `file` includes <cstdint>, directly or through a header of the project.
bool has_fixed_integers(const Includes& includes, const std::set<std::string>& have, const std::string& file) {
    if (have.contains(file)) return true;
    const auto found = includes.find(file);
    return found != includes.end() && std::ranges::any_of(found->second, [&](const std::string& other) {
        return has_fixed_integers(includes, have, other);
    });
}

std::size_t columns(const std::string& line) {  // UTF-8: continuation bytes take no column
    return std::size_t(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

TEST_CASE("includes go from higher to lower layers", "[layout]") {
    const Includes includes = includes_of_project();
    REQUIRE(includes.size() > 200);  // must run in the project's root
    CHECK(wrong_includes(includes) == Strings{});
}

// The standard library of g++ 12 includes <cstdint> in other headers, that of g++ 13 does not.
TEST_CASE("files that use fixed-size integers include <cstdint>", "[layout]") {
    const Includes includes = includes_of_project();
    const test::Pattern include("^#include <(cstdint|stdint\\.h)>"), name("std::u?int(8|16|32|64|ptr)_t");
    std::set<std::string> have, need;
    for (const auto& [file, included] : includes) {
        std::ifstream in(file);
        for (std::string line; std::getline(in, line);) {
            if (include.in(line)) have.insert(file);
            if (name.in(line.substr(0, line.find("//")))) need.insert(file);
        }
    }
    REQUIRE(need.size() > 100);
    for (const std::string& file : need)
        if (!has_fixed_integers(includes, have, file)) FAIL_CHECK(file << " does not include <cstdint>");
}

TEST_CASE("lines have at most 120 columns, and every source file starts with its name and purpose", "[layout]") {
    const Strings sources = {".h", ".cpp", ".cu", ".cuh"};
    const Strings others = {".sh", ".sbatch", ".py", ".md", "Makefile", ".mk", "dev/plot", "dev/data/prepare"};
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
                FAIL_CHECK(file << " does not start with " << opening);
        }
        if (number == 0) FAIL_CHECK(file << " is empty");
    }
}

TEST_CASE("every script that names its interpreter is executable", "[layout]") {
    int scripts = 0;
    for (const std::string& file : files_of_project()) {
        std::ifstream in(file);
        if (in.get() != '#' || in.get() != '!') continue;
        ++scripts;
        if ((fs::status(file).permissions() & fs::perms::owner_exec) == fs::perms::none)
            FAIL_CHECK(file << " is not executable: chmod +x");
    }
    CHECK(scripts > 40);
}
