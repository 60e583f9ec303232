// program.cpp - linked into each program with the stand-ins: the device process, which is the same program without its
// main(), executes the kernels
//
// The kernels are those of the build that looks for races between their threads (kernels/simt/races): before each
// access they call simt::races::note(), which here passes it to the detector of races between streams.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/simt/simt_host.h"
#include "test/stand_in/stand_in.h"

extern "C" {

// The linker replaces calls of NAME by __wrap_NAME, and of __real_NAME by NAME (Makefile).
int __real_main(int argc, char** argv);
void __real__ZN4simt8run_gridERKNS_6LaunchE(const simt::Launch&);

}  // extern "C"

namespace stand_in {
namespace {

// The first part of a launch's payload; the arguments follow. Code and constants, which have other addresses in the
// device process, are offsets from program_begin.
struct alignas(16) Sent {
    simt::LaunchConfig config;
    std::ptrdiff_t kernel, run_range;
    std::size_t argument_bytes;
};

bool run_kernel(std::byte* payload) {
    const Sent& sent = *reinterpret_cast<const Sent*>(payload);
    try {
        __real__ZN4simt8run_gridERKNS_6LaunchE(
            {sent.config, program_begin + sent.kernel,
             reinterpret_cast<simt::RunRange>(std::uintptr_t(program_begin) + std::uintptr_t(sent.run_range)),
             {payload + sizeof sent, sent.argument_bytes}});
    } catch (const base::Error& error) {
        stop(error.what());
    }
    return true;
}

}  // namespace
}  // namespace stand_in

extern "C" void __wrap__ZN4simt8run_gridERKNS_6LaunchE(const simt::Launch& launch) {
    const stand_in::Sent sent{launch.config, launch.kernel - program_begin,
                              reinterpret_cast<const char*>(launch.run_range) - program_begin,
                              launch.arguments.size()};
    std::vector<std::byte> payload(sizeof sent + launch.arguments.size());
    std::memcpy(payload.data(), &sent, sizeof sent);
    std::memcpy(payload.data() + sizeof sent, launch.arguments.data(), launch.arguments.size());
    const std::string name = simt::readable(launch.kernel);
    if (stand_in::failure_injected("cudaLaunchKernelExC"))
        throw base::Error("cudaLaunchKernelExC of " + name + " fails on request", base::Blame::runtime);
    stand_in::enqueue(launch.config.stream, name, stand_in::run_kernel, payload, {});
}

extern "C" int __wrap_main(int argc, char** argv) {
    return std::getenv("STAND_IN_DEVICE") ? stand_in::run_device() : __real_main(argc, argv);
}

namespace simt::races {

void begin_launch() {}
void begin_block(unsigned) {}
void end_block() {}
void sync_block() {}
void sync_warp(unsigned, unsigned) {}
void note(const void* address, std::size_t bytes, Access access, const void*) {
    stand_in::note_access(address, bytes, access == Access::write);
}
Pause::Pause() {}
Pause::~Pause() {}

}  // namespace simt::races
