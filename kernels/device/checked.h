// checked.h - CHECKED(call) runs a call of a library and throws a run-time Error with its text, file and line unless it
// succeeded
//
// What a status means is said once for each library, in an overload of fault_of() beside its use: empty for success,
// else name and text.
#pragma once
#include <string>

#include "kernels/device/error.h"

inline void throw_fault(const std::string& fault, const char* call, const char* file, int line) {
    if (!fault.empty())
        throw Error(std::string(call) + " failed at " + file + ":" + std::to_string(line) + ": " + fault,
                    Blame::runtime);
}
#define CHECKED(call) throw_fault(fault_of(call), #call, __FILE__, __LINE__)
