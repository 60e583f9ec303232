// peaks.cpp - the table of peaks.h
#include "kernels/device/peaks.h"

#include <algorithm>
#include <array>

namespace device {
namespace {

struct Entry {
    std::string_view name;  // without the prefix "NVIDIA ", which older drivers do not report
    Peaks peaks;
};

constexpr Peaks kA100{312e12, 156e12, 19.5e12};         // NVIDIA A100 Tensor Core GPU Architecture
constexpr Peaks kH100Sxm{989.4e12, 494.7e12, 66.9e12};  // NVIDIA H100 Tensor Core GPU Architecture

constexpr std::array kTable{
    Entry{"A100-SXM4-40GB", kA100},
    Entry{"A100-SXM4-80GB", kA100},
    Entry{"A100-PCIE-40GB", kA100},
    Entry{"A100 80GB PCIe", kA100},
    Entry{"H100 80GB HBM3", kH100Sxm},
    Entry{"H100 PCIe", {756e12, 378e12, 51.2e12}},     // as kH100Sxm
    Entry{"H200", kH100Sxm},                           // H200 data sheet: as H100 SXM
    Entry{"L40S", {362.05e12, 183e12, 91.6e12}},       // L40S data sheet
    Entry{"L4", {121e12, 60e12, 30.3e12}},             // L4 data sheet, half of "with sparsity"
    Entry{"A10", {125e12, 62.5e12, 31.2e12}},          // A10 data sheet
    Entry{"GeForce RTX 4090", {165.2e12, 82.6e12, 82.6e12}},  // NVIDIA Ada GPU Architecture
    Entry{"GeForce RTX 3090", {71e12, 35.6e12, 35.6e12}},     // NVIDIA Ampere GA102 GPU Architecture
};

}  // namespace

std::optional<Peaks> peaks_of(std::string_view name) {
    constexpr std::string_view kMaker = "NVIDIA ";
    if (name.starts_with(kMaker)) name.remove_prefix(kMaker.size());
    const auto* found = std::ranges::find(kTable, name, &Entry::name);
    if (found == kTable.end()) return {};
    return found->peaks;
}

}  // namespace device
