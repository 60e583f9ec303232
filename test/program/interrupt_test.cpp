// interrupt_test.cpp - signals do not disturb computation (which of them end a run: signals_test.cpp)
#include "llmc/run/control/interrupt.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

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

TEST_CASE("a thread that runs on after a stop knows of it at once", "[interrupt]") {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        llmc::Interrupt interrupt;
        kill(getpid(), SIGSTOP);
        _exit(interrupt.stopped_seconds() >= llmc::Interrupt::kStop ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, WUNTRACED) == child);
    REQUIRE(WIFSTOPPED(status));
    std::this_thread::sleep_for(std::chrono::duration<double>(llmc::Interrupt::kStop + 0.5));
    kill(child, SIGCONT);
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}
