// sites.cpp - call sites from the return addresses on the stack; binutils' addr2line, if found, names the functions
#include "test/stand_in/sites.h"

#include <execinfo.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>

#include "test/stand_in/host.h"

namespace stand_in {
namespace {

constexpr int kMostFrames = 24;

struct Site {
    std::string function;
    std::vector<const void*> frames;
};

struct Sites {
    std::mutex mutex;
    std::map<std::string, std::uint32_t> numbers;  // by function and frames
    std::vector<Site> all{1};                      // number 0 is not used
};
Sites& sites() {
    static Sites& only = *new Sites;
    return only;
}

}  // namespace

std::vector<const void*> frames_here() {
    void* all[kMostFrames];
    const int count = backtrace(all, kMostFrames);
    std::vector<const void*> frames;
    for (void* const frame : std::span(all, std::size_t(count)))
        if (const CodePlace place = place_of(frame); !place.module[0] && place.offset) frames.push_back(frame);
    return frames;
}

std::string places(const std::vector<const void*>& frames) {
    char name[4096];
    const ssize_t length = readlink("/proc/self/exe", name, sizeof name);
    std::string command = "addr2line -f -C -e '" + std::string(name, std::size_t(std::max<ssize_t>(length, 0))) + "'";
    for (const void* frame : frames) {
        char text[32];
        std::snprintf(text, sizeof text, " 0x%lx", (unsigned long)(place_of(frame).offset - 1));
        command += text;
    }
    std::vector<std::string> names;
    if (FILE* const out = frames.empty() ? nullptr : popen((command + " 2>/dev/null").c_str(), "r")) {
        char line[2048];
        for (int number = 0; std::fgets(line, sizeof line, out); ++number) {
            if (number % 2) continue;  // file and line, unknown without -g
            std::string text(line);
            text.erase(text.find_last_not_of('\n') + 1);
            constexpr std::string_view kNoise = "(anonymous namespace)::";
            for (std::size_t at; (at = text.find(kNoise)) != text.npos;) text.erase(at, kNoise.size());
            text.erase(std::min(text.find('('), text.size()));
            // skips wrappers
            if (text.starts_with("std::") || text.starts_with("device::") || text.starts_with("simt::") ||
                text.find("stand_in") != text.npos || text.starts_with("__wrap_") || text == "_start" ||
                text.starts_with("Catch::"))
                continue;
            if (names.empty() || names.back() != text) names.push_back(text);
        }
        pclose(out);
    }
    std::string text;
    for (std::size_t i = 0; i < names.size() && i < 4; ++i) text.append(i ? " <- " : "").append(names[i]);
    return text.empty() ? "an unnamed call site" : text;
}

std::uint32_t call_site(std::string_view function) {
    const auto frames = frames_here();
    std::string key(function);
    for (const void* frame : frames) key += ',' + std::to_string(place_of(frame).offset);
    Sites& known = sites();
    const std::lock_guard lock(known.mutex);
    auto& number = known.numbers[key];
    if (number == 0) {
        number = std::uint32_t(known.all.size());
        known.all.push_back({std::string(function), frames});
    }
    return number;
}

std::string describe_site(std::uint32_t site) {
    std::unique_lock lock(sites().mutex);
    if (site >= sites().all.size()) return "an unknown call site";
    const Site found = sites().all[site];
    lock.unlock();
    return found.function + " at " + places(found.frames);
}

}  // namespace stand_in
