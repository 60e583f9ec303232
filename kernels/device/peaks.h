// peaks.h - peak FLOP/s of GPUs, from their data sheets
#pragma once
#include <optional>
#include <string_view>

namespace device {

// Dense FLOP/s: bf16 and TF32 on tensor cores with fp32 accumulation, fp32 on the CUDA cores.
struct Peaks {
    double bf16, tf32, fp32;
};

// Looks a GPU up by its full CUDA device name: a partial match would confuse "H200 NVL", "RTX 3090 Ti" or a laptop's
// "RTX 4090" with cards that are faster or slower by a third. Empty: not in the table.
std::optional<Peaks> peaks_of(std::string_view name);

}  // namespace device
