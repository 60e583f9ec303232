// main_ranks.cpp - what rank_tests, ranks that are threads under ThreadSanitizer, has besides its test cases
#include "test/kernels/operations_test.h"

void register_operation_tests() {}  // kernels are checked elsewhere

// oneDNN is not instrumented: the lock around what one thread puts into its cache and another one reads there, also
// through its headers, is not seen.
extern "C" const char* __tsan_default_suppressions() { return "race:oneapi/dnnl\nrace:libdnnl.so\n"; }
