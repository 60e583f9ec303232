// child.h - runs this test program again with another environment
#pragma once
#include <unistd.h>

#include <cstdio>
#include <string>

#include "test/support/catch.h"

namespace test {

// The output, on stdout and stderr, of the tests with `tag`; `environment` ("NAME=VALUE ...") is added to the
// environment of this process.
inline std::string output_of_child(const std::string& environment, const std::string& tag) {
    const std::string command = environment + " /proc/" + std::to_string(getpid()) + "/exe '" + tag + "' 2>&1";
    FILE* pipe = popen(command.c_str(), "r");
    REQUIRE(pipe);
    std::string output;
    for (int c; (c = std::fgetc(pipe)) != EOF;) output += char(c);
    output += "status " + std::to_string(WEXITSTATUS(pclose(pipe)));
    return output;
}

}  // namespace test
