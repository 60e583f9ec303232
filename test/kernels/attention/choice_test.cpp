// choice_test.cpp - which attention implementation is selected, the errors for refused ones, and the tensor layout
// passed to cuDNN
#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/implementations.h"
#include "kernels/attention/cudnn_layout.h"
#include "kernels/tuning/tuned_algorithms.h"
#include "test/support/scratch_folder.h"
#include "test/support/support.h"

using namespace kernels;
using Methods = std::vector<AttentionMethod>;
using Names = std::vector<std::string>;

namespace {

using enum AttentionMethod;

const Methods kEverything{cudnn, flash, plain}, kWithoutCudnn{flash, plain}, kCpu{plain};

Names candidates(const AttentionSettings& settings, const Methods& build, DType dtype, int head_size,
                 bool backward = true, const std::function<int(CudnnPass)>& plans = {}, bool documents = false) {
    Names names;
    const AttentionShape shape{1, 64, 1, head_size, documents};
    for (const AttentionPlan& plan : attention_candidates(settings, build, dtype, shape, backward, plans)) {
        CHECK((plan.backward == backward && plan.method != automatic));
        names.push_back(plan.name());
    }
    return names;
}
std::string refusal(AttentionMethod asked, const Methods& build, DType dtype, int head_size, bool documents = false) {
    return test::error_of([&] { candidates({.method = asked}, build, dtype, head_size, true, {}, documents); },
                          Blame::input);
}

}  // namespace

TEST_CASE("auto tries cuDNN, then flash, then plain, as far as build, dtype and head size allow",
          "[attention][attention_choice][one_order]") {
    CHECK(candidates({}, kEverything, DType::bf16, 64) == Names{"cudnn 0+0, deterministic", "flash", "plain"});
    CHECK(candidates({}, kEverything, DType::bf16, 72) == Names{"cudnn 0+0, deterministic", "plain"});
    CHECK(candidates({}, kEverything, DType::fp32, 64) == Names{"plain"});
    CHECK(candidates({}, kWithoutCudnn, DType::bf16, 80) == Names{"flash", "plain"});
    CHECK(candidates({}, kCpu, DType::bf16, 64) == Names{"plain"});
}

TEST_CASE("attention requested by name is used or refused, never replaced",
          "[attention][attention_choice][one_order]") {
    CHECK(candidates({.method = cudnn}, kEverything, DType::bf16, 64) == Names{"cudnn 0+0, deterministic"});
    CHECK(candidates({.method = flash}, kEverything, DType::bf16, 80) == Names{"flash"});
    CHECK(candidates({.method = plain}, kEverything, DType::fp32, 24) == Names{"plain"});
    CHECK(refusal(cudnn, kWithoutCudnn, DType::bf16, 64) ==
          "--attention is \"cudnn\"; expected auto, flash or plain: this build has no cuDNN; "
          "build where make finds cudnn.h, libcudnn and cuDNN's frontend (README)");
    CHECK(refusal(cudnn, kEverything, DType::fp32, 64) ==
          "--attention is \"cudnn\"; expected auto or plain: cudnn computes in bf16 only; set --dtype bf16");
    CHECK(refusal(flash, kEverything, DType::fp32, 64) ==
          "--attention is \"flash\"; expected auto or plain: flash computes in bf16 only; set --dtype bf16");
    CHECK(refusal(flash, kEverything, DType::bf16, 48) ==
          "--attention is \"flash\"; expected auto or plain: the model's heads have 48 channels, flash supports 64, "
          "80, 96, 128; omit the flag, or choose another number of heads");
    for (AttentionMethod asked : {cudnn, flash, plain})
        CHECK_THAT(refusal(asked, kCpu, DType::bf16, 64),
                   test::EndsWith("expected auto: on a CPU there is one implementation, tiled on the CPU; "
                                   "omit the flag; on a GPU build with make DEVICE=cuda"));
}

TEST_CASE("cuDNN does not compute attention within documents", "[attention][attention_choice][documents][one_order]") {
    CHECK(candidates({}, kEverything, DType::bf16, 64, true, {}, true) == Names{"flash", "plain"});
    CHECK_THAT(refusal(cudnn, kEverything, DType::bf16, 64, true),
               test::StartsWith("--attention is \"cudnn\"; expected auto, flash or plain with --document-mask: ") &&
                   test::EndsWith("; omit one of the flags"));
    if (attention_methods().size() == 1) return;
    const std::string text = Attention().plan(DType::bf16, {1, 64, 1, 64, true}, true).text;
    CHECK_THAT(text, test::StartsWith("flash (mma.sync), selected by auto"));
    CHECK((text.find("; not cuDNN: ") != text.npos) == (attention_methods().size() == 3));
    const Attention by_name({.method = flash});
    CHECK(by_name.plan(DType::bf16, {1, 64, 1, 64, true}, true).text == "flash (mma.sync)");
}

TEST_CASE("cuDNN has a deterministic and a nondeterministic backward pass, and pairs of plans",
          "[attention][attention_choice][one_order]") {
    const AttentionSettings any{.deterministic = false};
    CHECK(candidates(any, kEverything, DType::bf16, 64) ==
          Names{"cudnn 0+0", "cudnn 0+0, deterministic", "flash", "plain"});
    CHECK(candidates(any, kEverything, DType::bf16, 64, false) == Names{"cudnn 0, deterministic", "flash", "plain"});
    const auto plans = [](CudnnPass pass) { return pass == CudnnPass::backward_fast ? 3 : 2; };
    CHECK(candidates(any, kEverything, DType::bf16, 80, true, plans) ==
          Names{"cudnn 0+0", "cudnn 0+1", "cudnn 0+2", "cudnn 1+0", "cudnn 1+1", "cudnn 1+2",
                "cudnn 0+0, deterministic", "cudnn 0+1, deterministic", "cudnn 1+0, deterministic",
                "cudnn 1+1, deterministic", "flash", "plain"});
    CHECK(candidates({.method = cudnn, .deterministic = false}, kEverything, DType::bf16, 64) ==
          Names{"cudnn 0+0", "cudnn 0+0, deterministic"});
}

TEST_CASE("auto selects the fastest method, and then the stored one", "[attention][attention_choice][one_order]") {
    const AttentionShape shape{1, 64, 1, 64};
    const auto text_of = [&](const Attention& of) { return of.plan(DType::bf16, shape, true).text; };
    TunedAlgorithms tuned;
    Attention attention({.tuned = &tuned}), same({.tuned = &tuned});
    attention.choose(DType::bf16, shape, true, nullptr);
    CHECK(count(tuned.known) == 0);  // timing is off
    tuned.timing = true;
    attention.choose(DType::fp32, shape, true, nullptr);
    CHECK(count(tuned.known) == 0);  // plain attention only
    attention.choose(DType::bf16, shape, true, nullptr);
    if (attention_methods().size() == 1) {
        CHECK(count(tuned.known) == 0);
        CHECK(text_of(attention) == "tiled on the CPU");
        return;
    }
    REQUIRE(count(tuned.timed()) == 1);
    const auto [key, choice] = *tuned.timed().at(attention.library()).begin();
    CHECK(key == "auto bf16, batch 1, seq_len 64, heads 1, head_size 64, both passes, deterministic");
    CHECK(choice.seconds > 0);
    CHECK_THAT(choice.why, test::Contains("flash ") && test::Contains("; plain ") &&
                               (test::EndsWith(" ms") || test::Contains("; not cudnn")));
    CHECK_THAT(text_of(attention), test::EndsWith(", selected by auto (" + choice.why + ")"));

    for (const char* taken : {"flash", "plain"}) {  // for any times
        tuned.known.at(attention.library()).at(key).taken = taken;
        Attention kept({.tuned = &tuned});
        kept.choose(DType::bf16, shape, true, nullptr);
        CHECK(kept.plan(DType::bf16, shape, true).method == (std::string_view(taken) == "flash" ? flash : plain));
        CHECK_THAT(kept.plan(DType::bf16, {2, 64, 1, 64}, true).text, !test::Contains(" ms"));  // another shape
        CHECK(tuned.known.at(attention.library()).at(key).taken == taken);
    }
    tuned.known.at(attention.library()).at(key).taken = "sparse";
    tuned.timing = false;
    CHECK_THAT(text_of(same), !test::Contains(" ms"));
    CHECK(count(tuned.known) == 0);  // unusable
    tuned.timing = true;
    Attention by_name({.method = plain, .tuned = &tuned});
    by_name.choose(DType::bf16, shape, true, nullptr);
    CHECK(count(tuned.known) == 0);  // one candidate
}

TEST_CASE("a plan that was made before its time was known is made again", "[attention][attention_choice][one_order]") {
    if (attention_methods().size() == 1) return;  // nothing is timed
    const AttentionShape shape{2, 64, 2, 64};
    device::Stream stream;
    TunedAlgorithms first;
    first.timing = true;
    Attention({.tuned = &first}).choose(DType::bf16, shape, true, stream);
    TunedAlgorithms second;  // of a rank that times nothing
    Attention attention({.tuned = &second});
    REQUIRE(attention.plan(DType::bf16, shape, true).method != plain);
    second.known = first.timed();
    second.known.at(attention.library()).begin()->second.taken = "plain";
    attention.replan();
    CHECK(attention.plan(DType::bf16, shape, true).method == plain);
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
