// main.cpp - Catch2's session, compiled once for all builds, with the test cases that follow from registrations
#define CATCH_CONFIG_RUNNER

#include "test/kernels/operations_test.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

int main(int argc, char** argv) {
    // Programs that tests start keep nothing in the user's cache, and find nothing there that decides their results.
    const test::ScratchFolder cache;
    setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
    register_operation_tests();
    test::tag_cases("test/kernels/", "kernels");  // so that none has to be named where they run in other builds
    return Catch::Session().run(argc, argv);
}
