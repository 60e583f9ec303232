// algorithm_choice_test.cpp - which form and algorithm of a library is selected for a product, with a fake library of
// given run times
#include <chrono>
#include <set>
#include <thread>

#include "kernels/matmul/algorithm_choice.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/rehearsal.h"
#include "test/support/support.h"

using namespace kernels;

namespace {

constexpr ProductShape kShape{.product = Product::forward, .dtype = DType::bf16, .rows = 64, .in_channels = 16,
                              .out_channels = 32, .biased = true, .with_gelu = true, .accumulate = false};
const ProductForm kBare{}, kFused{.gelu = true}, kCudnn{.gelu = true, .cudnn = true};

// Algorithms of one byte, their run time in ms; 0 cannot run. They sleep, because on a busy machine a
// thread that computes may wait for a core for longer than any of them runs. There a sleep takes several ms more, too:
// times whose order matters differ by 40.
struct Behaviour {
    AlgorithmBytes fused, bare, cudnn{};
    std::set<int> unsteady{};       // bits differ from run to run
    bool has_room = true;
    bool accepts_all = true;
};
struct FakeLibrary final : ProductLibrary, Behaviour {
    int requested = 0, checks = 0;

    explicit FakeLibrary(const Behaviour& behaviour) : Behaviour(behaviour) {}
    std::string name() const override { return "lib 1"; }
    std::vector<AlgorithmBytes> algorithms(const ProductForm& form, int most) override {
        std::vector<AlgorithmBytes> all;
        for (const unsigned char byte : form.cudnn ? cudnn : form.gelu ? fused : bare)
            if (int(all.size()) < most) all.push_back({byte});
        requested = most;
        return all;
    }
    bool accepts(const ChosenAlgorithm&) override {
        ++checks;
        return accepts_all;
    }
    void run(const ChosenAlgorithm& chosen) override {
        if (!has_room) throw Error("cannot allocate 9 bytes", Blame::runtime);
        if (chosen.algorithm[0] == 0) throw Error("no such kernel", Blame::runtime);
        std::this_thread::sleep_for(std::chrono::milliseconds(chosen.algorithm[0]));
    }
    bool repeats(const ChosenAlgorithm& chosen) override { return !unsteady.contains(chosen.algorithm[0]); }
};

}  // namespace

TEST_CASE("a product has the forms that its epilogues allow, the most fused first", "[matmul][tuning]") {
    const auto forms = [](Product product, DType dtype, bool biased, bool gelu, int out = 32, bool residual = false) {
        std::string names;
        for (const ProductForm& form : forms_of({product, dtype, 64, 16, out, biased, gelu, false, false, residual}))
            names += (names.empty() ? "" : ", ") + name_of(form);
        return names;
    };
    using enum Product;
    using enum DType;
    CHECK(forms(forward, bf16, true, false) == "bare");  // the bias of a forward product costs nothing
    CHECK(forms(forward, bf16, true, true) == "fused-gelu, bare, cudnn-gelu");
    CHECK(forms(forward, bf16, true, true, 36) == "bare");
    CHECK(forms(forward, fp32, true, true) == "bare");
    CHECK(forms(forward, fp32, true, false, 32, true) == "bare, fused-residual");
    CHECK(forms(backward_input, bf16, false, true) == "fused-gelu, bare, cudnn-gelu");
    CHECK(forms(backward_input, bf16, false, false) == "bare");
    CHECK(forms(backward_input, bf16, true, true) == "fused-gelu, fused-gelu-bias, bare, cudnn-gelu");
    CHECK(forms(backward_input, bf16, true, false) == "bare");
    CHECK(forms(backward_input, fp32, false, true) == "bare");
    CHECK(forms(backward_weight, bf16, false, false) == "bare");
    ProductShape unaligned = kShape;
    unaligned.alignment = 8;
    CHECK(forms_of(unaligned) == std::vector{kFused, kBare});
}

TEST_CASE("different products have different keys", "[matmul][tuning]") {
    std::set<std::string> problems;
    std::vector<ProductShape> others(14, kShape);
    others[1].product = Product::backward_input;
    others[2].product = Product::backward_weight;
    others[3].dtype = DType::fp32;
    others[4].dtype = DType::fp32, others[4].tf32 = true;
    others[5].rows = 65;
    others[6].in_channels = 32;
    others[7].out_channels = 16;
    others[8].biased = false;
    others[9].with_gelu = false;
    others[10].accumulate = true;
    others[11].alignment = 16;
    others[12].residual = true;
    others[13].fp8 = true;
    for (const ProductShape& shape : others) problems.insert(shape.problem());
    CHECK(problems.size() == others.size());
    CHECK(kShape.problem() == "matmul forward bf16, rows 64, in_channels 16, out_channels 32, bias, gelu");
}

TEST_CASE("an algorithm is stored as text that parses only for shapes with its form", "[matmul][tuning]") {
    const ChosenAlgorithm chosen{kFused, {0x00, 0x9a, 0xff}};
    CHECK(text_of(chosen) == "fused-gelu 009aff");
    CHECK(parse_algorithm("fused-gelu 009aff", kShape) == chosen);
    CHECK(parse_algorithm("bare 009aff", kShape) == ChosenAlgorithm{kBare, {0x00, 0x9a, 0xff}});
    CHECK(parse_algorithm("cudnn-gelu 07", kShape) == ChosenAlgorithm{kCudnn, {7}});
    for (const char* text : {"", "fused-gelu", "fused-residual 00", "fused-gelu 009af", "fused-gelu 00 aff",
                             "fused-gelu 0g", "Bare 00", "bare 0x", "bare -1"}) {
        CAPTURE(text);
        CHECK(!parse_algorithm(text, kShape));
    }
    ProductShape plain = kShape;
    plain.with_gelu = false;
    CHECK(!parse_algorithm("fused-gelu 009aff", plain));
}

TEST_CASE("without timing the library's first algorithm of its first form is used, and not stored",
          "[matmul][tuning]") {
    FakeLibrary fake({.fused = {9, 1}, .bare = {5, 2}, .cudnn = {7}});
    TunedAlgorithms tuned;
    for (TunedAlgorithms* given : {static_cast<TunedAlgorithms*>(nullptr), &tuned}) {
        CHECK(choose_algorithm(kShape, fake, given, nullptr) == ChosenAlgorithm{kFused, {9}});
        CHECK(fake.requested == 1);
    }
    fake.fused = {};
    CHECK(choose_algorithm(kShape, fake, &tuned, nullptr) == ChosenAlgorithm{kBare, {5}});
    fake.bare = fake.cudnn = {};
    CHECK(!choose_algorithm(kShape, fake, &tuned, nullptr));
    tuned.timing = true;
    CHECK(!choose_algorithm(kShape, fake, &tuned, nullptr));
    CHECK(count(tuned.known) == 0);
}

TEST_CASE("the fastest of all forms is stored, and used again without timing", "[matmul][tuning][host_time]") {
    FakeLibrary fake({.fused = {50, 60, 0}, .bare = {70, 0, 5}, .cudnn = {60}});
    TunedAlgorithms tuned;
    tuned.timing = true;
    const ChosenAlgorithm fastest{kBare, {5}};
    CHECK(choose_algorithm(kShape, fake, &tuned, nullptr) == fastest);
    const TunedAlgorithm kept = tuned.timed().at("lib 1").at(kShape.problem());
    CHECK(kept.taken == "bare 05");
    CHECK(kept.seconds >= 0.0005);
    CHECK_THAT(kept.why, test::Contains("; the library's first ") &&
                             test::EndsWith("; 7 candidates; 2 failed to run: no such kernel"));
    fake.bare = {1};
    tuned.timing = GENERATE(false, true);
    CHECK(choose_algorithm(kShape, fake, &tuned, nullptr) == fastest);
    CHECK(fake.checks == 1);

    fake.accepts_all = false;  // such as one stored on another GPU
    const auto instead = choose_algorithm(kShape, fake, &tuned, nullptr);
    CHECK(instead == (tuned.timing ? ChosenAlgorithm{kBare, {1}} : ChosenAlgorithm{kFused, {50}}));
}

TEST_CASE("a stored form without an algorithm selects the library's first of that form", "[matmul][tuning]") {
    FakeLibrary fake({.fused = {9, 1}, .bare = {5, 2}});
    TunedAlgorithms tuned;
    const auto forced = [&](const char* form) {
        tuned.known["lib 1"][kShape.problem()] = {form, "", 0};
        return choose_algorithm(kShape, fake, &tuned, nullptr);
    };
    CHECK(forced("bare") == ChosenAlgorithm{kBare, {5}});
    CHECK(forced("fused-gelu") == ChosenAlgorithm{kFused, {9}});
    CHECK(tuned.used().at("lib 1").at(kShape.problem()).taken == "fused-gelu");
    fake.bare = {};
    CHECK(forced("bare") == ChosenAlgorithm{kFused, {9}});  // which the library lacks
    CHECK(count(tuned.used()) == 0);
    CHECK(forced("cudnn-gelu") == ChosenAlgorithm{kFused, {9}});
    fake.cudnn = {7, 8};
    CHECK(forced("cudnn-gelu") == ChosenAlgorithm{kCudnn, {7}});
    CHECK(forced("fused-residual") == ChosenAlgorithm{kFused, {9}});  // which the product has not
}

TEST_CASE("a product that was planned before it could be timed is timed after replan()", "[matmul][tuning]") {
    if (!Matmul::chooses_by_shape()) return;
    TunedAlgorithms tuned;
    Matmul matmul({.tuned = &tuned});
    const auto in = test::on_device(std::vector<float>(64)), weight = test::on_device(std::vector<float>(64)),
               out = test::poisoned<float>(64);
    const auto timed_after_a_product = [&] {
        matmul.forward<float>({out.span(), {}, in.span(), weight.span(), {}, 8, 8, 8}, nullptr);
        device::sync(nullptr);
        return count(tuned.timed());
    };
    CHECK(timed_after_a_product() == 0);
    tuned.timing = true;
    CHECK(timed_after_a_product() == 0);
    matmul.replan();
    CHECK(timed_after_a_product() == 1);
}

TEST_CASE("an algorithm whose bits differ from run to run is not selected", "[matmul][tuning][host_time]") {
    FakeLibrary fake({.fused = {2, 42}, .bare = {125, 85}, .unsteady = {2, 42}});
    TunedAlgorithms tuned;
    tuned.timing = true;
    CHECK(choose_algorithm(kShape, fake, &tuned, nullptr) == ChosenAlgorithm{kBare, {85}});
    fake.unsteady = {2};
    TunedAlgorithms others;
    others.timing = true;
    CHECK(choose_algorithm(kShape, fake, &others, nullptr) == ChosenAlgorithm{kFused, {42}});
    CHECK_THAT(others.timed().at("lib 1").at(kShape.problem()).why,
               test::EndsWith("; 1 faster, but not bit-identical when repeated"));

    fake.bare = {30};
    fake.unsteady = {2, 42, 30};
    TunedAlgorithms none;
    none.timing = true;
    CHECK(choose_algorithm(kShape, fake, &none, nullptr) == ChosenAlgorithm{kFused, {2}});
    CHECK(count(none.known) == 0);
    REQUIRE(none.notes().size() == 1);
    CHECK_THAT(none.notes()[0], test::EndsWith("; 3 faster, but not bit-identical when repeated"));
}

TEST_CASE("a product repeats if two runs leave the same bits in its result", "[matmul][tuning]") {
    device::Array<bf16> result(8), other(8);
    int number = 0;
    const auto write = [&](bool changing, bool everywhere) {
        const std::vector<bf16> zeros(8), numbers(8, bf16_from_float(float(++number)));
        result.upload(changing ? numbers : zeros, nullptr);
        other.upload(everywhere ? numbers : zeros, nullptr);
        device::sync(nullptr);
    };
    const auto check = [&](auto op) {
        Rehearsal<decltype(op), int> rehearsal(op, nullptr);
        CHECK(rehearsal.repeats_result([&] { write(false, false); }, nullptr));
        CHECK(rehearsal.repeats_result([&] { write(false, true); }, nullptr));
        CHECK_FALSE(rehearsal.repeats_result([&] { write(true, false); }, nullptr));
    };
    check(LinearForward<bf16>{.out = result.span(), .pre = other.span()});
    check(LinearBackwardInput<bf16>{.din = result.span(), .dout = other.span()});
}
