// waiting_threads.h - threads that wait for each other leave their cores to other programs soon
#pragma once

namespace llmc {

// OpenMP's threads wait for each other thousands of times in a step. GNU's library has them spin for up to 20 ms first,
// which is of use to nobody where another program has the core of the thread that is waited for: a step of a small
// model takes 3 times as long beside another program, or 30 times. Threads that sleep at once are a tenth slower on a
// machine that does nothing else. They spin for a moment, then: dev/results/2026-11-22-waiting.md.
//
// The library reads its settings when a program is loaded. So the program starts itself once more in its own place,
// with GOMP_SPINCOUNT in its environment: the first thing in main(). It does nothing where that or OMP_WAIT_POLICY is
// set, or where it cannot be started again.
void start_with_threads_that_sleep_soon(char** argv);

}  // namespace llmc
