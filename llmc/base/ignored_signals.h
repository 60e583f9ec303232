// ignored_signals.h - signals that were ignored when the program started, as SIGHUP is under nohup
#pragma once

namespace llmc {

// Ignores SIGHUP, SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 again if they were ignored at the start. Libraries install
// handlers without asking: UCX, which Open MPI loads, one for SIGHUP, in Open MPI 5 before main(). Call it first in
// main(), after MPI_Init() and before the program restarts itself.
void ignore_signals_again();

}  // namespace llmc
