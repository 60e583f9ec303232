// onednn_library.h - version and instruction set of oneDNN
#pragma once
#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <string>
#include <utility>

namespace kernels::onednn {

#if defined(__x86_64__)
// Bit sets: newer instruction sets include older ones, and oneDNN 3 has more of them than oneDNN 2.
inline bool uses(dnnl_cpu_isa_t isa) { return (dnnl_get_effective_cpu_isa() & isa) == isa; }
inline constexpr const char* kOldest = "instructions before AVX2";
#else
// The values of dnnl_cpu_isa_t are those of x86-64. For aarch64 oneDNN returns others, which it does not publish.
inline bool uses(dnnl_cpu_isa_t) { return false; }
inline constexpr const char* kOldest = "";
#endif

// With the instruction set that it uses, which environment variables can limit.
inline std::string library_name() {
    const dnnl_version_t* version = dnnl_version();
    constexpr std::pair<dnnl_cpu_isa_t, const char*> kKnown[] = {
        {dnnl_cpu_isa_avx512_core_amx, "AMX"},
        {dnnl_cpu_isa_avx512_core_bf16, "AVX-512 BF16"},
        {dnnl_cpu_isa_avx512_core_vnni, "AVX-512 VNNI"},
        {dnnl_cpu_isa_avx512_core, "AVX-512"},
        {dnnl_cpu_isa_avx2_vnni, "AVX2 VNNI"},
        {dnnl_cpu_isa_avx2, "AVX2"},
    };
    const auto* const found = std::ranges::find_if(kKnown, [](const auto& known) { return uses(known.first); });
    const std::string isa = found != std::end(kKnown) ? found->second : kOldest;
    return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch) + (isa.empty() ? "" : ", ") + isa;
}

}  // namespace kernels::onednn
