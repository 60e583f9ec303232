// standard_streams.cpp - SIGPIPE, SIGXFSZ, and standard streams that are closed at startup
#include "llmc/base/standard_streams.h"

#include <fcntl.h>

#include <csignal>

namespace llmc {

void secure_standard_streams() {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    // open() returns the lowest free descriptor.
    for (int stream = 0; stream <= 2; ++stream)
        if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) return;
}

}  // namespace llmc
