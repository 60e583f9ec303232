// communicator_suite.h - tests that every communicator must pass; all ranks call them together, and a failure throws
// Error
#pragma once
#include <exception>
#include <string>

#include "kernels/base/error.h"
#include "llmc/comm/communicator.h"

namespace test {

inline void expect(bool holds, const std::string& what) {
    if (!holds) throw Error("expectation failed: " + what, Blame::runtime);
}

// Declare it after the memory that collectives use: it ends that use before the memory is freed, whether the scope ends
// normally (after its groups have been waited for) or by an exception.
class CommScope {
public:
    explicit CommScope(llmc::Communicator& communicator)
        : communicator_(communicator),
          exceptions_(std::uncaught_exceptions()) {}
    ~CommScope() { communicator_.end_all(std::uncaught_exceptions() > exceptions_); }
    CommScope(const CommScope&) = delete;
    CommScope& operator=(const CommScope&) = delete;

private:
    llmc::Communicator& communicator_;
    int exceptions_;
};

// Every device collective at boundary sizes up to `largest` elements, bit-identical to a plain loop in rank order.
void check_device_collectives(llmc::Communicator& comm, std::int64_t largest);
// Many operations in a group, consecutive groups, and the control plane while they run.
void check_groups(llmc::Communicator& comm);
// Communicators made by split(): they are full communicators, the parent counts their bytes, and they can alternate.
void check_parts(llmc::Communicator& comm);
void check_control_plane(llmc::Communicator& comm);

}  // namespace test
