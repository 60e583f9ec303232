// simt_report.h - formats blocks, call sites and threads for the executor's error messages
#pragma once
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/simt/simt_block.h"
#include "kernels/simt/simt_kernel_name.h"

namespace simt {

// The kernel and block that this OS thread executes: "kernel k<float>, block (0, 1, 0) of 64 threads".
std::string describe_block();

inline std::string_view name_of(Wait wait) {
    switch (wait) {
        case Wait::syncthreads: return "__syncthreads";
        case Wait::syncwarp: return "__syncwarp";
        case Wait::mma: return "mma.sync";
        case Wait::ldmatrix: return "ldmatrix";
        case Wait::shfl_xor: return "__shfl_xor_sync";
    }
    return "?";
}

inline bool same(const Site& a, const Site& b) {
    const char *file_a = a.where.file_name(), *file_b = b.where.file_name();
    return a.wait == b.wait && a.where.line() == b.where.line() &&
           (file_a == file_b || std::strcmp(file_a, file_b) == 0);
}

inline std::string hexadecimal(unsigned mask) {
    std::ostringstream text;
    text << "0x" << std::hex << mask;
    return text.str();
}

inline std::string spell(const Site& site) {
    std::ostringstream text;
    text << name_of(site.wait) << " at " << site.where.file_name() << ':' << site.where.line();
    return text.str();
}

inline std::string spell(const dim3& d) {
    std::ostringstream text;
    text << '(' << d.x << ", " << d.y << ", " << d.z << ')';
    return text.str();
}

// "0-31, 40, 64-95": at most `limit` ranges.
inline std::string spell_ranges(const std::vector<unsigned>& ascending, int limit) {
    std::ostringstream text;
    int ranges = 0;
    for (std::size_t i = 0, next; i < ascending.size(); i = next, ++ranges) {
        for (next = i + 1; next < ascending.size() && ascending[next] == ascending[next - 1] + 1;) ++next;
        if (ranges == limit) {
            text << " and " << ascending.size() - i << " more";
            break;
        }
        text << (ranges ? ", " : "") << ascending[i];
        if (next - i > 1) text << '-' << ascending[next - 1];
    }
    return text.str();
}

}  // namespace simt
