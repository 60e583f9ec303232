// main.cpp - Catch2's session, compiled once, with the test cases that follow from registrations
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "test/kernels/operations_test.h"

int main(int argc, char** argv) {
    register_operation_tests();
    return Catch::Session().run(argc, argv);
}
