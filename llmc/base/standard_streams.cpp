// standard_streams.cpp - SIGPIPE, SIGXFSZ, and standard streams that are closed at startup
#include "llmc/base/standard_streams.h"

#include <fcntl.h>

#include <cerrno>
#include <csignal>

#include "llmc/base/file_status.h"

namespace llmc {

void secure_standard_streams() {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    // open() returns the lowest free descriptor.
    for (int stream = 0; stream <= 2; ++stream)
        if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) return;
}

void print_stdout(const std::string& text) {
    std::cout << text << std::flush;
    const int fault = errno;
    if (!std::cout && fault != EPIPE)
        fail_as_unwritable("cannot write standard output", fault);
}

}  // namespace llmc
