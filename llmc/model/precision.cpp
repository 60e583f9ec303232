// precision.cpp - flags of data types, memory and the exchange of gradients
#include "llmc/model/precision.h"

#include "kernels/base/error.h"
#include "kernels/device/device.h"

namespace llmc {

void add_options(OptionList& list, PrecisionSettings& s) {
    list.group("Precision and memory");
    list.entry("dtype", s.dtype,
        "data type of parameters and activations; master weights, Adam moments and gradients are fp32", kDTypes,
        ByRun{});
    list.entry("stochastic-rounding", s.stochastic_rounding,
        "with bf16: round master weights to parameters stochastically (unbiased) instead of to nearest");
    list.entry("fp8", s.fp8,
        "with bf16: 8-bit floats in the products of the head in training, on a CPU (slowly) or a GPU from compute "
        "capability 8.9 on; "
        "head-backward: of its gradients; head: of its logits, too. Validation, samples, --eval-only and dev/generate "
        "use bf16",
        kFp8s);
    list.entry("r,recompute", s.recompute,
        "activation checkpointing; which activations the backward pass recomputes to save memory",
        kRecomputeLevels, ByRun{});
    list.group("Machine");
    list.entry("f,tf32", s.tf32, "on a GPU: use TF32 tensor cores (10-bit mantissa) for fp32 matrix products");
    list.entry("ignore-memory-plan", s.ignore_memory_plan,
        "start even if the memory plan exceeds the available memory");
    list.check([&s, decided = list.decided] {  // a run that chooses the type takes what these need
        const bool may_be_bf16 = s.dtype == kernels::DType::bf16 || (decided && !decided->contains("dtype"));
        require(!s.stochastic_rounding || may_be_bf16, "--stochastic-rounding",
                "set with --dtype " + name_of(s.dtype, kDTypes), "--dtype bf16",
                "add it, or --stochastic-rounding=off: fp32 parameters are not rounded");
        require(s.fp8 == Fp8::off || may_be_bf16, "--fp8",
                name_of(s.fp8, kFp8s) + " with --dtype " + name_of(s.dtype, kDTypes), "--dtype bf16",
                "add it, or use --fp8 off");
        require(!s.tf32 || device::is_gpu(), "--tf32", "set on a CPU", "a GPU with TF32 tensor cores", "remove it");
    });
}

void add_options(OptionList& list, ExchangeSettings& s) {
    list.group("Data parallelism");
    list.entry("z,zero-stage", s.zero_stage,
        "ZeRO stage: 0 shards nothing over ranks, 1 the optimizer state (Adam moments; with bf16 also master "
        "weights), 2 also the gradients",
        Whole{0, 2});
    list.entry("reduce-dtype", s.dtype, "data type of gradients in the all-reduce or reduce-scatter", kDTypes);
}

}  // namespace llmc
