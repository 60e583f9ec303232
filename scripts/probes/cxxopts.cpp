// cxxopts.cpp - the cxxopts features that train_gpt2 uses; scripts/install_deps.sh compiles it
//
// library:  cxxopts
// expected: version 2.2
// packages: libcxxopts-dev
// version:  CXXOPTS__VERSION_MAJOR.CXXOPTS__VERSION_MINOR.CXXOPTS__VERSION_PATCH
#include "llmc/base/cxxopts_versions.h"

int main(int argc, char** argv) {
    cxxopts::Options options("probe", "What is used of cxxopts");
    options.custom_help("FILES");
    options.add_options("files")("files", "", cxxopts::value<std::vector<std::string>>());
    options.add_options()("n,number", "a number", cxxopts::value<int>()->default_value("1")->no_implicit_value(), "N");
    options.parse_positional({"files"});
    llmc::set_help_width(options, 100);
    try {
        const auto [given, unmatched] = llmc::parse_words(options, {argv, argv + argc});
        if (given.count("files") + unmatched.size() > 0 && options.help({""}).empty()) return 1;
        return given["number"].as<int>();
    } catch (const llmc::CxxoptsError&) {
        return int(llmc::long_names(options.group_help("").options.front()).size());
    }
}
