// interrupt_test.cpp - signals do not disturb computation (which of them end a run: signals_test.cpp)
#include "llmc/run/control/interrupt.h"

#include <csignal>

#include "test/support/catch.h"

TEST_CASE("handlers of other signals do not run on threads that compute", "[interrupt]") {
    const llmc::Interrupt interrupt;
    sigset_t blocked;
    REQUIRE(pthread_sigmask(SIG_BLOCK, nullptr, &blocked) == 0);
    for (const int signal : {SIGALRM, SIGVTALRM, SIGPROF, SIGCHLD}) {
        CAPTURE(signal);
        CHECK(sigismember(&blocked, signal) == 1);
    }
}
