// short_omp_spin.h - restarts the program so that waiting OpenMP threads yield their cores to other programs early
#pragma once

namespace llmc {

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
