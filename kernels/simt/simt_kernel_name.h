// simt_kernel_name.h - kernel names for messages: "kernels::gelu_forward_kernel<float, 16>"
#pragma once
#include <string>
#include <string_view>

namespace simt {

// The compiler's name for a kernel, by Clang 14 without template arguments; readable() shortens it.
template <auto Kernel>
constexpr const char* kernel_name() { return __PRETTY_FUNCTION__; }

// "constexpr const char* simt::kernel_name() [with auto Kernel = kernels::{anonymous}::gelu<float, 1>]" ->
// "kernels::gelu<float, 1>". nvcc gives the unnamed namespace of each file a name: "_GLOBAL__N__0b1c_8_gelu_cu_9f::".
inline std::string readable(std::string_view pretty) {
    if (const auto begin = pretty.find("Kernel = "); begin != std::string_view::npos) {
        pretty.remove_prefix(begin + 9);
        pretty = pretty.substr(0, pretty.rfind(']'));
    }
    std::string name(pretty.substr(pretty.starts_with('&') ? 1 : 0));
    for (const std::string_view noise : {"{anonymous}::", "(anonymous namespace)::", "_GLOBAL__N_"})
        for (std::size_t at; (at = name.find(noise)) != std::string::npos;)
            name.erase(at, noise.ends_with(':') ? noise.size() : name.find("::", at) + 2 - at);
    return name;
}

}  // namespace simt
