// without_root.h - drops root's rights during its lifetime, because root may read every file
#pragma once
#include <unistd.h>

#include <cstdlib>

#include "test/support/catch.h"

namespace test {

struct WithoutRoot {
    const bool root = geteuid() == 0;
    WithoutRoot() { if (root) REQUIRE(seteuid(65534) == 0); }
    ~WithoutRoot() { if (root && seteuid(0) != 0) std::abort(); }
};

}  // namespace test
