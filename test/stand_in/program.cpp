// program.cpp - linked into each program with the stand-ins: the device process is the same program without its main()
#include <cstdlib>

#include "test/stand_in/program.h"

extern "C" int __real_main(int argc, char** argv);
extern "C" int __wrap_main(int argc, char** argv) {
    return std::getenv("STAND_IN_DEVICE") ? stand_in::run_device() : __real_main(argc, argv);
}
