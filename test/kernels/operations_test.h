// operations_test.h - test cases that follow from the registrations in test/operations
#pragma once

// Hands them to Catch2; to be called once, after all static objects exist and before the session runs.
void register_operation_tests();
