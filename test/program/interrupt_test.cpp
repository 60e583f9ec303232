// interrupt_test.cpp - signals do not disturb computation (which of them end a run: signals_test.cpp)
#include <omp.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "kernels/device/device.h"
#include "kernels/matmul/matmul.h"
#include "llmc/run/control/interrupt.h"
#include "test/support/support.h"

using namespace test;

namespace {

// Runs `work` in a child process. Returns its exit code, or minus the signal that killed it.
template <class Work>
int outcome(Work&& work) {
    const pid_t child = fork();
    if (child == 0) {
        // Ignored in background processes of a shell, and under nohup.
        for (const int signal : {SIGINT, SIGHUP}) std::signal(signal, SIG_DFL);
        _exit(work());
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Products in fp32 with 2000 handled signals per second, and heap blocks allocated and freed, so that corruption shows.
int multiply_under_fire() {
    omp_set_num_threads(1);
    std::signal(SIGALRM, [](int) {});
    const itimerval rapid{{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &rapid, nullptr);
    const int rows = 64, in_channels = 32, out_channels = 96;
    kernels::Matmul matmul;
    auto in = on_device(normal<float>(rows * in_channels, 1)), dout = on_device(normal<float>(rows * out_channels, 2));
    auto weight = on_device(normal<float>(out_channels * in_channels, 3));
    auto din = poisoned<float>(rows * in_channels), dweight = poisoned<float>(out_channels * in_channels);
    for (int i = 0; i < 50000; ++i) {
        matmul.backward_weight<float>({.dweight = dweight.span(), .dout = dout.span(), .in = in.span(), .rows = rows,
                                       .in_channels = in_channels, .out_channels = out_channels, .accumulate = false},
                                      nullptr);
        matmul.backward_input<float>({.din = din.span(), .dout = dout.span(), .weight = weight.span(), .pre = {},
                                      .rows = rows, .in_channels = in_channels, .out_channels = out_channels}, nullptr);
        const std::vector<float> neighbour(std::size_t(100 + i % 1000), 1.0f);
        if (neighbour.back() != 1.0f) return 1;
    }
    return 0;
}

}  // namespace

TEST_CASE("handlers of other signals do not run on threads that compute products", "[interrupt]") {
    // CUDA cannot be used in a forked child, and signals do not affect a GPU's products.
    if (device::is_gpu()) test::skip("a build for GPUs");
    CHECK(outcome([] {
              const llmc::Interrupt interrupt;
              return multiply_under_fire();
          }) == 0);
}
