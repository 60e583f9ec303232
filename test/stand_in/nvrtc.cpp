// nvrtc.cpp - stand-in for libnvrtc, which compiles nothing: only cuDNN's plans need it, and its stand-in makes none
//
// Each function ends the program, instead of creating, compiling or destroying a program as documented.
#include <nvrtc.h>

#include "test/stand_in/stand_in.h"

namespace {
[[noreturn]] void refuse(const std::string& function) { stand_in::stop(function + ": the stand-in compiles nothing"); }
}  // namespace

extern "C" {

nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*) {
    refuse(__func__);
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { refuse(__func__); }
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) { refuse(__func__); }
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*) { refuse(__func__); }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { refuse(__func__); }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*) { refuse(__func__); }
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) { refuse(__func__); }

}  // extern "C"
