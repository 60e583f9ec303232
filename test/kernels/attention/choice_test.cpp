// choice_test.cpp - which attention implementation is selected, the errors for refused ones, and the tensor layout
// passed to cuDNN
#include <set>

#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/implementations.h"
#include "kernels/attention/cudnn_layout.h"
#include "kernels/tuning/tuned_algorithms.h"
#include "llmc/base/names.h"
#include "test/support/scratch_folder.h"
#include "test/support/support.h"

using namespace kernels;
using Methods = std::vector<AttentionMethod>;

namespace {

using enum AttentionMethod;

constexpr int kSizes[] = {64, 80};
const AttentionBuild kEverything{.plain = "plain", .cudnn = true, .flash_head_sizes = kSizes};
const AttentionBuild kWithoutCudnn{.plain = "plain", .cudnn = false, .flash_head_sizes = kSizes};
const AttentionBuild kCpu{.plain = "tiled on the CPU", .cudnn = false, .flash_head_sizes = {}};

std::string refusal(AttentionMethod asked, const AttentionBuild& build, DType dtype, int head_size) {
    return test::error_of([&] { attention_candidates(asked, build, dtype, head_size); }, Blame::input);
}

}  // namespace

TEST_CASE("auto tries cuDNN, then flash, then plain, as far as build, dtype and head size allow",
          "[attention][attention_choice][one_order]") {
    CHECK(attention_candidates(automatic, kEverything, DType::bf16, 64) == Methods{cudnn, flash, plain});
    CHECK(attention_candidates(automatic, kEverything, DType::bf16, 72) == Methods{cudnn, plain});
    CHECK(attention_candidates(automatic, kEverything, DType::fp32, 64) == Methods{plain});
    CHECK(attention_candidates(automatic, kWithoutCudnn, DType::bf16, 80) == Methods{flash, plain});
    CHECK(attention_candidates(automatic, kCpu, DType::bf16, 64) == Methods{plain});
}

TEST_CASE("attention requested by name is used or refused, never replaced",
          "[attention][attention_choice][one_order]") {
    CHECK(attention_candidates(cudnn, kEverything, DType::bf16, 64) == Methods{cudnn});
    CHECK(attention_candidates(flash, kEverything, DType::bf16, 80) == Methods{flash});
    CHECK(attention_candidates(plain, kEverything, DType::fp32, 24) == Methods{plain});
    CHECK(refusal(cudnn, kWithoutCudnn, DType::bf16, 64) ==
          "--attention is \"cudnn\"; expected auto, flash or plain: this build has no cuDNN; "
          "build where make finds cudnn.h, libcudnn and cuDNN's frontend (README)");
    CHECK(refusal(cudnn, kEverything, DType::fp32, 64) ==
          "--attention is \"cudnn\"; expected auto or plain: cudnn computes in bf16 only; set --dtype bf16");
    CHECK(refusal(flash, kEverything, DType::fp32, 64) ==
          "--attention is \"flash\"; expected auto or plain: flash computes in bf16 only; set --dtype bf16");
    CHECK(refusal(flash, kEverything, DType::bf16, 48) ==
          "--attention is \"flash\"; expected auto or plain: the model's heads have 48 channels, flash supports 64, "
          "80; omit the flag, or choose another number of heads");
    for (AttentionMethod asked : {cudnn, flash, plain})
        CHECK_THAT(refusal(asked, kCpu, DType::bf16, 64),
                   test::EndsWith("expected auto: on a CPU there is one implementation, tiled on the CPU; "
                                   "omit the flag; on a GPU build with make DEVICE=cuda"));
}

TEST_CASE("cuDNN has a deterministic and a nondeterministic backward pass",
          "[attention][attention_choice][one_order]") {
    using Forms = std::vector<AttentionForm>;
    const Methods all{cudnn, flash, plain};
    CHECK(attention_forms(all, true, false) == Forms{{cudnn, false}, {cudnn, true}, {flash, true}, {plain, true}});
    CHECK(attention_forms(all, true, true) == Forms{{cudnn, true}, {flash, true}, {plain, true}});
    CHECK(attention_forms(all, false, false) == Forms{{cudnn, true}, {flash, true}, {plain, true}});
    CHECK(attention_forms({cudnn}, true, false) == Forms{{cudnn, false}, {cudnn, true}});
    std::set<std::string> names;
    for (const AttentionForm& form : attention_forms(all, true, false)) names.insert(form.name());
    CHECK(names == std::set<std::string>{"cudnn", "cudnn, deterministic", "flash", "plain"});
}

TEST_CASE("auto selects the fastest method, and then the stored one", "[attention][attention_choice][one_order]") {
    const AttentionBuild build = attention_build();
    const AttentionProblem problem{DType::bf16, {1, 64, 1, 64}, true};
    TunedAlgorithms tuned;
    Attention attention({.tuned = &tuned}), same({.tuned = &tuned});
    attention.choose(problem, nullptr);
    CHECK(count(tuned.known) == 0);  // timing is off
    tuned.timing = true;
    attention.choose({DType::fp32, problem.shape, true}, nullptr);
    CHECK(count(tuned.known) == 0);  // plain attention only
    attention.choose(problem, nullptr);
    if (!build.choice()) {
        CHECK(count(tuned.known) == 0);
        CHECK(attention.describe(problem) == "tiled on the CPU");
        return;
    }
    REQUIRE(count(tuned.timed()) == 1);
    const auto [key, choice] = *tuned.timed().at(attention.library()).begin();
    CHECK(key == "auto bf16, batch 1, seq_len 64, heads 1, head_size 64, both passes, deterministic");
    CHECK(choice.seconds > 0);
    CHECK_THAT(choice.why, test::Contains("flash ") && test::Contains("; plain ") &&
                               (test::EndsWith(" ms") || test::Contains("; not cudnn")));
    CHECK_THAT(attention.describe(problem), test::EndsWith(", selected by auto (" + choice.why + ")"));

    for (const char* taken : {"flash", "plain"}) {  // for any times
        tuned.known.at(attention.library()).at(key).taken = taken;
        Attention kept({.tuned = &tuned});
        kept.choose(problem, nullptr);
        CHECK(kept.plan(problem).method == (std::string_view(taken) == "flash" ? flash : plain));
        CHECK(kept.plan({DType::bf16, {2, 64, 1, 64}, true}).times.empty());  // another shape
        CHECK(tuned.known.at(attention.library()).at(key).taken == taken);
    }
    tuned.known.at(attention.library()).at(key).taken = "sparse";
    tuned.timing = false;
    CHECK(same.plan(problem).times.empty());
    CHECK(count(tuned.known) == 0);  // unusable
    tuned.timing = true;
    Attention by_name({.method = plain, .tuned = &tuned});
    by_name.choose(problem, nullptr);
    CHECK(count(tuned.known) == 0);  // one form
}

TEST_CASE("every method of attention has one name", "[attention][attention_choice][one_order]") {
    std::set<std::string_view> names;
    for (const auto& [name, method] : kAttentionMethods) {
        CHECK(llmc::value_by_name("--attention", name, kAttentionMethods) == method);
        names.insert(name);
    }
    CHECK(names.size() == 4);
}

TEST_CASE("the description names the selected method", "[attention][attention_choice][one_order]") {
    const AttentionBuild build = attention_build();
    const Attention attention;
    const std::string fp32 = attention.describe({DType::fp32, {2, 64, 2, 64}, true});
    CHECK(attention.plan({DType::fp32, {2, 64, 2, 64}, true}).workspace_bytes == 0);
    if (!build.choice()) {
        CHECK(fp32 == "tiled on the CPU");
        CHECK(attention.describe({DType::bf16, {2, 64, 2, 64}, true}) == "tiled on the CPU");
        return;
    }
    CHECK(fp32 == "plain, selected by auto");
    CHECK(Attention({.method = plain}).describe({DType::bf16, {2, 64, 2, 64}, true}) == "plain");
    CHECK(Attention({.method = flash}).describe({DType::bf16, {2, 64, 2, 64}, true}) == "flash (mma.sync)");
    if (!build.cudnn)
        CHECK(attention.describe({DType::bf16, {2, 64, 2, 64}, true}) == "flash (mma.sync), selected by auto");
}

TEST_CASE("cuDNN gets the layout of attention's tensors", "[attention][attention_choice][one_order]") {
    const AttentionShape shape{2, 5, 3, 8};
    const auto element = [](const CudnnLayout& layout, int b, int h, int t, int c) {
        const auto& s = layout.strides;
        return std::size_t(layout.first + b * s[0] + h * s[1] + t * s[2] + c * s[3]);
    };
    using enum CudnnOperand;
    const std::pair<CudnnOperand, int> packed[] = {{q, 0}, {k, 1}, {v, 2}, {dq, 0}, {dk, 1}, {dv, 2}};
    bool all = true;
    for (int b = 0; b < shape.batch; ++b)
        for (int h = 0; h < shape.heads; ++h)
            for (int t = 0; t < shape.seq_len; ++t) {
                all = all && element(cudnn_layout(stats, shape), b, h, t,
                                     0) == std::size_t((b * shape.heads + h) * shape.seq_len + t);
                for (int c = 0; c < shape.head_size; ++c) {
                    for (const auto& [operand, part] : packed)
                        all = all &&
                              element(cudnn_layout(operand, shape), b, h, t, c) ==
                                  std::size_t(
                                      (((b * shape.seq_len + t) * 3 + part) * shape.heads + h) * shape.head_size + c);
                    for (CudnnOperand operand : {out, dout})
                        all = all && element(cudnn_layout(operand, shape), b, h, t, c) ==
                                         std::size_t(((b * shape.seq_len + t) * shape.heads + h) * shape.head_size + c);
                }
            }
    CHECK(all);
    using Four = std::array<std::int64_t, 4>;
    for (CudnnOperand operand : {q, k, v, out, dout, dq, dk, dv})
        CHECK(cudnn_layout(operand, shape).dimensions == Four{2, 3, 5, 8});
    CHECK(cudnn_layout(stats, shape).dimensions == Four{2, 3, 5, 1});
    // 64 bits: the last element of a large batch is beyond 2^31.
    const CudnnLayout large = cudnn_layout(v, {512, 4096, 64, 128});
    const std::int64_t last = large.first + 511 * large.strides[0] + 63 * large.strides[1] + 4095 * large.strides[2] +
                              127;
    CHECK(last == std::int64_t(512) * 4096 * 3 * 64 * 128 - 1);
}

TEST_CASE("a plan of cuDNN serves one pass and one shape", "[attention][attention_choice][one_order]") {
    constexpr CudnnPass forward = CudnnPass::forward, fast = CudnnPass::backward_fast;
    const std::set<CudnnPlanKey> keys{{forward, {1, 2, 3, 8}}, {CudnnPass::backward_deterministic, {1, 2, 3, 8}},
                                      {fast, {1, 2, 3, 8}},    {forward, {2, 2, 3, 8}},
                                      {forward, {1, 3, 3, 8}}, {forward, {1, 2, 4, 8}}, {forward, {1, 2, 3, 16}}};
    CHECK(keys.size() == 7);
    CHECK(keys.contains({fast, {1, 2, 3, 8}}));
    CHECK(!keys.contains({fast, {2, 2, 3, 8}}));
}
