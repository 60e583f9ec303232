// process_start.h - what main() does first: keeps signals ignored that were ignored at the start, as SIGHUP is under
// nohup, and restarts the program so that waiting OpenMP threads yield their cores to other programs early
#pragma once

namespace llmc {

// Ignores SIGHUP, SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 again if they were ignored at the start. Libraries install
// handlers without asking: UCX, which Open MPI loads, one for SIGHUP, in Open MPI 5 before main(). Call it first in
// main(), after MPI_Init() and before the program restarts itself.
void ignore_signals_again();

// OpenMP threads wait for each other thousands of times per step. In GNU's library they first spin for up to 20 ms,
// which is wasted if another program occupies the core of the thread that they wait for: a step of a small model takes
// 3 to 30 times as long next to another program. Threads that sleep immediately are 10 % slower on an otherwise idle
// machine. So they spin briefly, then sleep: dev/LOG.md (2026-11-22).
//
// The library reads its settings when the program is loaded. So the program replaces itself (exec) with GOMP_SPINCOUNT
// set in its environment, as the first action of main(). It does nothing if that or OMP_WAIT_POLICY is set, or if
// exec fails.
void reexec_with_short_omp_spin(char** argv);

}  // namespace llmc
