// communicator_suite.h - what every communicator must do, called by all ranks together; throws Error where it does not
#pragma once
#include <exception>
#include <string>

#include "kernels/device/error.h"
#include "llmc/comm/communicator.h"

namespace test {

inline void expect(bool holds, const std::string& what) {
    if (!holds) throw Error("not so: " + what, Blame::runtime);
}

// Declare it behind the memory that collectives use: it ends that use before the memory goes, whether the scope is left
// in the ordinary way (when its groups have been waited for) or by an exception.
class CommScope {
public:
    explicit CommScope(llmc::Communicator& communicator)
        : communicator_(communicator),
          exceptions_(std::uncaught_exceptions()) {}
    ~CommScope() { communicator_.settle(std::uncaught_exceptions() > exceptions_); }
    CommScope(const CommScope&) = delete;
    CommScope& operator=(const CommScope&) = delete;

private:
    llmc::Communicator& communicator_;
    int exceptions_;
};

// Every device collective at edge sizes up to `largest` elements, bit for bit against a plain loop in the order of the
// ranks, and the bytes that it says each rank sends.
void check_device_collectives(llmc::Communicator& comm, std::int64_t largest);
// Many operations in a group, groups that follow each other, and the control plane meanwhile.
void check_groups(llmc::Communicator& comm);
// Parts of it: that they are communicators, too, whose bytes the whole counts, and that they may work in turn.
void check_parts(llmc::Communicator& comm);
void check_control_plane(llmc::Communicator& comm);

}  // namespace test
