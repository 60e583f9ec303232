// checked.h - CHECKED(call) calls a library function; on failure it throws a run-time Error with the call's text, file
// and line
//
// An overload of fault_of() for each library's status type translates the status: empty on success, otherwise the
// error's name and description.
#pragma once
#include <string>

#include "kernels/base/error.h"

inline void throw_fault(const std::string& fault, const char* call, const char* file, int line) {
    if (!fault.empty())
        throw base::Error(std::string(call) + " failed at " + file + ":" + std::to_string(line) + ": " + fault,
                          base::Blame::runtime);
}
#define CHECKED(call) throw_fault(fault_of(call), #call, __FILE__, __LINE__)
