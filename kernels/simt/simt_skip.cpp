// simt_skip.cpp - simt_skip.h
#include "kernels/simt/simt_skip.h"

#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <iostream>

#include "kernels/base/error.h"

namespace simt {
namespace {

class Environment {
public:
    Environment()
        : place_(std::getenv("SIMT_SKIP_BARRIER") ? std::getenv("SIMT_SKIP_BARRIER") : ""),
          barrier_(place_) {}
    ~Environment() {
        if (place_.empty() || reached_) return;
        std::cerr << "SIMT_SKIP_BARRIER is \"" << place_
                  << "\"; expected the FILE:LINE of a plain __syncthreads or __syncwarp that a kernel reaches\n";
        std::cout.flush();
        _exit(3);
    }
    const SkippedBarrier& barrier() const { return barrier_; }
    void reach() { reached_ = true; }

private:
    const std::string place_;
    const SkippedBarrier barrier_;
    std::atomic<bool> reached_{false};
};

Environment& environment() {
    static Environment the_process;
    return the_process;
}

}  // namespace

SkippedBarrier::SkippedBarrier(std::string_view place) {
    if (place.empty()) return;
    const auto colon = place.rfind(':');
    const char *begin = place.data() + (colon == std::string_view::npos ? 0 : colon + 1),
               *end = place.data() + place.size();
    const auto [rest, error] = std::from_chars(begin, end, line_);
    require(colon != std::string_view::npos && colon != 0 && rest == end && error == std::errc{} && line_ != 0,
            "SIMT_SKIP_BARRIER", '"' + std::string(place) + '"', "FILE:LINE of a __syncthreads or __syncwarp");
    file_ = place.substr(0, colon);
}

bool SkippedBarrier::is_plain_and_in_file(const Site& site) const {
    const std::string_view file = site.where.file_name();
    if ((site.wait != Wait::syncthreads && site.wait != Wait::syncwarp) || !file.ends_with(file_)) return false;
    if (file.size() != file_.size() && file[file.size() - file_.size() - 1] != '/') return false;
    environment().reach();
    return true;
}

const SkippedBarrier& SkippedBarrier::of_environment() { return environment().barrier(); }

}  // namespace simt
