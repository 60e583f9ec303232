// program.cpp - what is linked into a program with the stand-ins: kernels go to the device process, which is this
// program without main(), and there every access of a kernel is noted
//
// Kernels are those of the build that looks for races between threads (kernels/simt/races): the compiler calls
// simt::races::note before each access. Here the operations of streams are looked at instead.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/device/error.h"
#include "kernels/simt/simt_host.h"
#include "kernels/simt/simt_report.h"
#include "test/stand_in/program.h"

namespace {

// Code and text of the program lie elsewhere in the device process: they are sent as distances from here.
extern "C" const char program_begin[] asm("__executable_start");

// What is sent of a launch, before the arguments.
struct Sent {
    simt::LaunchConfig config;
    std::ptrdiff_t kernel, run_range;
    std::size_t argument_bytes;
};
constexpr std::size_t kArgumentsAt = (sizeof(Sent) + 15) / 16 * 16;

bool run_launch(std::byte* payload) {
    Sent sent;
    std::memcpy(&sent, payload, sizeof sent);
    try {
        simt::run_grid({sent.config, program_begin + sent.kernel,
                        reinterpret_cast<simt::RunRange>(reinterpret_cast<std::uintptr_t>(program_begin) +
                                                         std::uintptr_t(sent.run_range)),
                        payload + kArgumentsAt, sent.argument_bytes});
    } catch (const Error& error) {
        stand_in::stop(error.what());
    }
    return true;
}

void launch_on_device(const simt::Launch& launch) {
    const Sent sent{launch.config, launch.kernel - program_begin,
                    reinterpret_cast<const char*>(launch.run_range) - program_begin, launch.argument_bytes};
    std::vector<std::byte> payload(kArgumentsAt + launch.argument_bytes);
    std::memcpy(payload.data(), &sent, sizeof sent);
    std::memcpy(payload.data() + kArgumentsAt, launch.arguments, launch.argument_bytes);
    const std::string name = simt::readable(launch.kernel);
    const std::string fault = stand_in::launch(launch.config.stream, name, run_launch, payload);
    if (!fault.empty()) throw Error("cudaLaunchKernelExC of " + name + ": " + fault, Blame::runtime);
}

}  // namespace

namespace simt::races {

void begin_launch() {}
void begin_block(unsigned) {}
void end_block() {}
void meet_block() {}
void meet_warp(unsigned, unsigned) {}
void fence() {}
void note(const void* address, std::size_t bytes, Access access, const void*) {
    stand_in::note_access(address, bytes, access != Access::read);
}
Pause::Pause() {}
Pause::~Pause() {}

}  // namespace simt::races

extern "C" int __real_main(int argc, char** argv);
extern "C" int __wrap_main(int argc, char** argv) {
    if (std::getenv("STAND_IN_DEVICE")) return stand_in::run_device();
    simt::launch_elsewhere = launch_on_device;
    return __real_main(argc, argv);
}
