// fp8_head.cpp - which kernels and products the head in 8-bit floats consists of
#include "llmc/model/fp8_head.h"

#include "kernels/base/error.h"
#include "kernels/classifier.h"
#include "kernels/fp8.h"

namespace llmc {

using kernels::bf16, kernels::e4m3, kernels::e5m2;

void require_fp8(Fp8 fp8, const ModelConfig& config, const device::Info& device) {
    if (fp8 == Fp8::off) return;
    const std::string flag = "--fp8 " + name_of(fp8, kFp8s), off = "use --fp8 off";
    const int capability = device.compute_capability;
    require(capability == 0 || capability >= 89, flag + ": the compute capability of " + device.name,
            std::to_string(capability / 10) + "." + std::to_string(capability % 10), "8.9 or later (Ada, Hopper)", off);
    require(config.channels % 16 == 0, flag + ": the number of channels", config.channels, "a multiple of 16", off);
}

void round_weights(const Fp8Head& head, std::span<const bf16> gamma, std::span<const bf16> beta,
                   std::span<const bf16> weight, kernels::StreamRef stream) {
    const int channels = int(gamma.size());
    kernels::fp8_scales({head.scales, head.scratch, gamma, beta, weight}, stream);
    kernels::fp8_round({head.weight, weight, head.scales.subspan(kernels::kScaleW, 1)}, stream);
    kernels::fp8_transpose<e4m3>({head.weight_transposed, head.weight, int(weight.size()) / channels, channels},
                                 stream);
}

void head_in_fp8(Fp8 fp8, const Fp8Head& head, const Fp8HeadRows& op, const ModelConfig& config,
                 kernels::Matmul& matmul, kernels::StreamRef stream) {
    const int channels = config.channels, vocabulary = config.padded_vocabulary();
    const auto scale = [&](kernels::Fp8Scale which) { return std::span<const float>(head.scales).subspan(which, 1); };
    const auto x = head.x.first(op.x.size());
    kernels::fp8_round({x, op.x, scale(kernels::kScaleX)}, stream);
    if (fp8 == Fp8::head)
        matmul.multiply<e4m3, bf16>({.out = op.logits, .left = x, .right = head.weight,
                                     .left_factor = scale(kernels::kInverseX),
                                     .right_factor = scale(kernels::kInverseW), .m = op.rows, .n = vocabulary,
                                     .k = channels}, stream);
    kernels::classifier<bf16>({.logits = op.logits, .losses = op.losses, .targets = op.targets, .rows = op.rows,
                               .vocabulary = config.vocabulary, .padded_vocabulary = vocabulary, .scale = 1,
                               .write_dlogits = false, .fp8 = head.dlogits}, stream);
    const float factor = op.token_weight / kernels::kFp8GradientScale;
    kernels::fp8_transpose<e4m3>({head.x_transposed, x, op.rows, channels}, stream);
    kernels::fp8_transpose<e5m2>({head.dlogits_transposed, head.dlogits, op.rows, vocabulary}, stream);
    matmul.multiply<e5m2, float>({.out = op.dweight, .left = head.dlogits_transposed, .right = head.x_transposed,
                                  .left_factor = {}, .right_factor = scale(kernels::kInverseX), .m = vocabulary,
                                  .n = channels, .k = kernels::fp8_padded_rows(op.rows), .factor = factor,
                                  .accumulate = op.accumulate}, stream);
    matmul.multiply<e5m2, bf16>({.out = op.dx, .left = head.dlogits, .right = head.weight_transposed,
                                 .left_factor = {}, .right_factor = scale(kernels::kInverseW), .m = op.rows,
                                 .n = channels, .k = vocabulary, .factor = factor}, stream);
}

}  // namespace llmc
