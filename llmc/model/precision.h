// precision.h - the data types and the memory of a model's parameters and activations, as flags say them
#pragma once
#include "kernels/device/types.h"
#include "llmc/base/names.h"
#include "llmc/base/option.h"
#include "llmc/model/activations.h"

namespace llmc {

inline constexpr Named<kernels::DType> kDTypes[] = {{"fp32", kernels::DType::fp32}, {"bf16", kernels::DType::bf16}};

struct PrecisionSettings {
    kernels::DType dtype = kernels::DType::fp32;
    bool stochastic_rounding = false, tf32 = false;
    Fp8 fp8 = Fp8::off;
    Recompute recompute = Recompute::none;
    bool ignore_memory_plan = false;
};
void add_options(OptionList& list, PrecisionSettings& settings);

// Of the exchange of gradients between ranks.
struct ExchangeSettings {
    std::int64_t zero_stage = 0;
    kernels::DType dtype = kernels::DType::fp32;
};
void add_options(OptionList& list, ExchangeSettings& settings);

}  // namespace llmc
