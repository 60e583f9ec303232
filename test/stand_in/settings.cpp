// settings.cpp - the environment variables of the stand-ins and their valid values; others are errors before main(), so
// that no run silently ignores a setting
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <string>
#include <string_view>

#include "test/stand_in/host.h"

namespace stand_in {
namespace {

struct Setting { std::string_view name; const char *pattern, *expected; };
constexpr const char* kNumber = "[0-9]{1,18}";
constexpr Setting kSettings[] = {
    {"STAND_IN_SCHEDULE", "eager|late|random", "eager, late or random"},
    {"STAND_IN_SEED", kNumber, "a number"},
    {"STAND_IN_GPUS", kNumber, "a number"},
    {"STAND_IN_FAIL", "[A-Za-z0-9]+:[1-9][0-9]{0,8}[+]?(@[0-9]{1,9})?", "FUNCTION:N, FUNCTION:N+ or FUNCTION:N@RANK"},
    {"STAND_IN_CUBLASLT", "(nothing|no-epilogues|invalid-epilogues)?",
     "nothing, no-epilogues or invalid-epilogues"},
    {"STAND_IN_CUBLASLT_SECONDS", "([0-9][0-9.e-]*,){2,3}[0-9][0-9.e-]*", "three or four numbers: A,B,C,D"},
    {"STAND_IN_NCCL_SECONDS", kNumber, "a number"},
    {"STAND_IN_NVML", "(nvml[A-Za-z0-9_]+:[0-9]{1,3}(,|$))*", "FUNCTION:CODE,..."},
    {"STAND_IN_CALLS", ".+", "a file"},
};

[[gnu::constructor]] void refuse_invalid() {
    if (!is_host()) return;
    for (char** entry = environ; *entry; ++entry) {
        const std::string text(*entry), name = text.substr(0, text.find('='));
        if (!name.starts_with("STAND_IN_")) continue;
        const auto* const known = std::ranges::find(kSettings, name, &Setting::name);
        if (known == std::end(kSettings)) {
            std::string names;
            for (const Setting& setting : kSettings) names.append(names.empty() ? "" : ", ").append(setting.name);
            stop(name + " is not a variable of the stand-ins; expected one of " + names);
        }
        const std::string value = text.substr(name.size() + 1);
        if (!std::regex_match(value, std::regex(known->pattern)))
            stop(name + " is \"" + value + "\"; expected " + known->expected);
        const std::string function = value.substr(0, value.find(':'));
        // The program's launches call stand_in::launch() instead.
        if (name == "STAND_IN_FAIL" && function != "cudaLaunchKernelExC" && !dlsym(RTLD_DEFAULT, function.c_str()))
            stop(name + " is \"" + value + "\"; the stand-ins have no " + function);
    }
}

}  // namespace

std::int64_t setting(const char* variable, std::int64_t otherwise) {
    const char* const text = std::getenv(variable);
    return text ? std::atoll(text) : otherwise;
}

}  // namespace stand_in
