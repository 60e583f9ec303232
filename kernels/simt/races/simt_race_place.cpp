// simt_race_place.cpp - simt_race_place.h, implemented with addr2line
#include "kernels/simt/races/simt_race_place.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <sstream>

namespace simt::races {
namespace {

std::string output_of(const std::string& command) {
    struct Close { void operator()(FILE* pipe) const { pclose(pipe); } };
    const std::unique_ptr<FILE, Close> pipe(popen(command.c_str(), "r"));
    std::string output;
    std::array<char, 4096> chunk;
    for (std::size_t count; pipe && (count = std::fread(chunk.data(), 1, chunk.size(), pipe.get())) > 0;)
        output.append(chunk.data(), count);
    return output;
}

std::string source_location(std::uint32_t offset) {
    std::ostringstream command;
    command << "addr2line -i -e /proc/" << getpid() << "/exe 0x" << std::hex << offset - 1 << " 2>/dev/null";
    std::istringstream frames(output_of(command.str()));
    std::string location;
    for (std::string frame; std::getline(frames, frame);) {
        while (frame.starts_with("./")) frame.erase(0, 2);
        frame = frame.substr(0, frame.find(' '));  // "(discriminator 2)"
        // skip frames of libraries and of the executor
        if (frame.starts_with('/') || frame.starts_with('?') || frame.starts_with("kernels/simt/")) continue;
        location += (location.empty() ? "" : ", called at ") + frame;
    }
    if (!location.empty()) return location;
    std::ostringstream unknown;
    unknown << "instruction 0x" << std::hex << offset;
    return unknown.str();
}

}  // namespace

std::pair<std::string, std::string> source_locations(std::uint32_t first, std::uint32_t second) {
    return {source_location(first), source_location(second)};
}

}  // namespace simt::races
