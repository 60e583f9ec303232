// main.cpp - Catch2's session, compiled once for all builds, with the test cases that follow from registrations
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <string>

#include "test/kernels/operations_test.h"
#include "test/support/scratch_folder.h"

namespace {

// Every test of test/kernels/ has the tag [kernels], so that none has to be named where they run in other builds.
// Hidden ones are what tests start as processes of their own.
void tag_kernel_tests() {
    for (const Catch::TestCase& test : Catch::getRegistryHub().getTestCaseRegistry().getAllTests()) {
        if (test.isHidden() || std::string(test.lineInfo.file).find("test/kernels/") == std::string::npos) continue;
        auto tags = test.tags;
        tags.push_back("kernels");
        Catch::setTags(const_cast<Catch::TestCase&>(test), tags);  // as Catch2 itself does for --filenames-as-tags
    }
}

}  // namespace

int main(int argc, char** argv) {
    // Programs that tests start keep nothing in the user's cache, and find nothing there that decides their results.
    const test::ScratchFolder cache;
    setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
    register_operation_tests();
    tag_kernel_tests();
    return Catch::Session().run(argc, argv);
}
