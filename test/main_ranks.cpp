// main_ranks.cpp - Catch2's session for ranks that are threads, under ThreadSanitizer
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>

// oneDNN is not instrumented: the lock around what one thread puts into its cache and another one reads there, also
// through its headers, is not seen.
extern "C" const char* __tsan_default_suppressions() { return "race:oneapi/dnnl\nrace:libdnnl.so\n"; }
