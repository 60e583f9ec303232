// libfuzzer.cpp - libFuzzer's two entry points, which select the target of this program and check its parser
#include <cstdint>

#include "test/fuzz/target.h"

namespace fuzz {
namespace {

Parse& chosen() {
    static Parse parse = nullptr;
    return parse;
}

}  // namespace
}  // namespace fuzz

extern "C" {
int LLVMFuzzerInitialize(int*, char*** arguments) {
    const std::string name = std::filesystem::path(**arguments).filename();
    for (const fuzz::NamedTarget& target : fuzz::targets())
        if (target.name == name) fuzz::chosen() = target.parse;
    fuzz::must(fuzz::chosen(), "the name of a target: " + name);
    return 0;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::check(fuzz::chosen(), {reinterpret_cast<const char*>(data), size});
    return 0;
}
}
