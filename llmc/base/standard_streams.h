// standard_streams.h - makes a run independent of its terminal: if output has no reader, only the output is lost
#pragma once
#include <iostream>
#include <string>

namespace llmc {

// After this call a write to a pipe without a reader fails instead of ending the program (SIGPIPE is ignored), also
// during exit; so does a write beyond the file size limit (`ulimit -f`, SIGXFSZ). Standard streams that are closed at
// startup are opened on /dev/null: otherwise the next file opened, such as the log, would get their descriptor and
// receive the printed output. Call it before the program opens a file.
void secure_standard_streams();

// Throws Error if there is no room for the text. A reader that has exited (`... | head`) needs no more.
void print_stdout(const std::string& text);

// Prints a line to stderr in one write: mpirun mixes partial lines with those of stdout and of other ranks.
inline void print_stderr(const std::string& line) { std::cerr << line + '\n' << std::flush; }

}  // namespace llmc
