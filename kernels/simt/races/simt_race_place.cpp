// simt_race_place.cpp - simt_race_place.h, by asking addr2line
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

std::string source_place(std::uint32_t offset) {
    std::ostringstream command;
    command << "addr2line -i -e /proc/" << getpid() << "/exe 0x" << std::hex << offset - 1 << " 2>/dev/null";
    std::istringstream frames(output_of(command.str()));
    std::string place;
    for (std::string frame; std::getline(frames, frame);) {
        while (frame.starts_with("./")) frame.erase(0, 2);
        frame = frame.substr(0, frame.find(' '));  // "(discriminator 2)"
        // a library's or the executor's
        if (frame.starts_with('/') || frame.starts_with('?') || frame.starts_with("kernels/simt/")) continue;
        place += (place.empty() ? "" : ", called at ") + frame;
    }
    if (!place.empty()) return place;
    std::ostringstream unknown;
    unknown << "instruction 0x" << std::hex << offset;
    return unknown.str();
}

}  // namespace

std::pair<std::string, std::string> source_places(std::uint32_t first, std::uint32_t second) {
    return {source_place(first), source_place(second)};
}

}  // namespace simt::races
