// operations_test.h - test cases generated from the registrations in test/operations
#pragma once

// Registers them with Catch2. Call it once, after static initialization and before the session runs.
void register_operation_tests();
