// standard_streams.h - a run does not hang on the terminal: output that nobody reads is lost, and nothing else
#pragma once
#include <iostream>
#include <string>

namespace llmc {

// From here on a write to a pipe whose reader is gone fails instead of ending the program (SIGPIPE is ignored), also
// while the program ends; so does one beyond the size that a file may have (`ulimit -f`, SIGXFSZ). A standard stream
// that came closed leads nowhere: else the next file opened, such as the log, would take its number, and what is
// printed would go there. Call it before anything opens a file.
void secure_standard_streams();

// A line of stderr, written at once: what comes in pieces mpirun mixes with lines of stdout and of other ranks.
inline void tell_stderr(const std::string& line) { std::cerr << line + '\n' << std::flush; }

}  // namespace llmc
