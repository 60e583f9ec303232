// hellaswag_test.cpp - predictions from known losses, and from a model on any number of ranks against its fp64 logits
#include "llmc/run/evaluation/hellaswag.h"

#include <limits>

#include "test/support/hellaswag_support.h"
#include "test/support/rank_support.h"

using namespace llmc;
using namespace test;

namespace {

using Example = HellaSwagBytes::Example;

HellaSwagScore score_with(const std::vector<Example>& examples, const std::vector<double>& nats) {
    const ScratchFolder folder;
    return score_of(HellaSwagFile(HellaSwagBytes(examples, 10, 0).write(folder / "known.bin")), nats);
}

const ModelConfig kScored{.layers = 2, .heads = 2, .channels = 32, .max_seq_len = 128, .vocabulary = 61};

// The fp64 loss of the tokens of `ending` after `context`, predicted `shift` positions late: 0 is correct.
double nats_of(const ParameterTable& table, const std::vector<double>& parameters, const Example& example,
               std::size_t ending, int shift) {
    std::vector<int> tokens(example.context.begin(), example.context.end());
    tokens.insert(tokens.end(), example.endings[ending].begin(), example.endings[ending].end());
    std::vector<int> targets(tokens.size(), kernels::kIgnoreTarget);
    for (std::size_t t = example.context.size(); t < tokens.size(); ++t)
        targets[t - 1 + std::size_t(shift)] = tokens[t];
    return reference_loss(table, parameters, {tokens, targets, 1, int(tokens.size())}).sum;
}

// The scores of the ranks, of which only rank 1 receives the signal, or is out of time.
std::vector<HellaSwagScore> scores_of(const std::string& path, const std::vector<float>& weights, int ranks,
                                      int micro_batch, int stage, int signal = 0, bool out_of_time = false) {
    return on_ranks<HellaSwagScore>(ranks, [&](Context& context) {
        const int rank = context.world->rank();
        const ModelSetup setup{.config = kScored, .shape = {micro_batch, 128}, .training = false,
                               .sharding = {.stage = stage, .rank = rank, .ranks = ranks}};
        const auto model = make_model(setup, ParameterTable(kScored), context);
        model->load(weights);
        BatchUpload upload(setup, context);
        const HellaSwagFile file(path);
        const HellaSwagBatches batches(file, micro_batch, 128);
        return hellaswag_score(batches, *model, upload, context, [&] { return rank == 1 ? signal : 0; },
                               [&] { return rank == 1 && out_of_time; });
    });
}

}  // namespace

TEST_CASE("the ending with the lowest summed or mean loss wins", "[hellaswag]") {
    const std::array<HellaSwagBytes::Ids, 4> endings{{{1}, {1, 2}, {1, 2, 3}, {1, 2, 3, 4}}};
    const std::vector<Example> both{{.context = {5}, .endings = endings, .right = 0},
                                    {.context = {5}, .endings = endings, .right = 3}};
    // Means 2.0, 1.5, 1.2, 1.1: by the sum the first, by the mean the last.
    const HellaSwagScore score = score_with(both, {2.0, 3.0, 3.6, 4.4, 2.0, 3.0, 3.6, 4.4});
    CHECK((score.examples == 2 && score.right == 1 && score.right_norm == 1));
    CHECK(score.acc_norm() == 0.5);
    CHECK(score.acc_norm_error() == Approx(std::sqrt(0.125)));
    CHECK(score_with({both[0]}, {2.0, 3.0, 3.6, 4.4}).right == 1);
    CHECK(score_with({both[0]}, {2.0, 3.0, 3.6, 4.4}).right_norm == 0);
    // Ties: the first.
    const std::array<HellaSwagBytes::Ids, 4> like{{{1}, {2}, {3}, {4}}};
    for (std::uint16_t right = 0; right < 4; ++right) {
        const HellaSwagScore tie = score_with({{.context = {5}, .endings = like, .right = right}}, {2, 1, 1, 1});
        CHECK((tie.right == (right == 1) && tie.right_norm == (right == 1)));
        const double nan = std::numeric_limits<double>::quiet_NaN();
        for (const double broken : {nan, std::numeric_limits<double>::infinity()})
            CHECK(score_with({{.context = {5}, .endings = like, .right = right}}, {1, broken, 2, 2}).right == 0);
    }
    // Equal endings tie, also if rounding gave them other sums.
    const std::array<HellaSwagBytes::Ids, 4> twice{{{3, 4}, {1, 2}, {1}, {1, 2}}};
    for (std::uint16_t right = 0; right < 4; ++right) {
        const HellaSwagScore tie =
            score_with({{.context = {5}, .endings = twice, .right = right}}, {3, 2.0000002, 2.5, 2.0000001});
        CAPTURE(right);
        CHECK((tie.right == (right == 1) && tie.right_norm == (right == 1)));
    }
}

TEST_CASE("a model's HellaSwag scores equal those of its fp64 logits on any number of ranks",
          "[ranks][hellaswag]") {
    const ScratchFolder folder;
    auto examples = random_hellaswag(48, 61, 90, 3);
    // Equal endings that fill a row of 64: some libraries round the last products of a batch in another way.
    for (const Example& example : random_hellaswag(12, 61, 90, 4)) {
        examples.push_back({.context = HellaSwagBytes::Ids(60, example.context[0]), .endings = {}});
        examples.back().endings.fill({1, 2, 3, 4, example.endings[0][0]});
    }
    const std::string path = HellaSwagBytes(examples, 61, 0).write(folder / "many.bin");
    const ParameterTable table(kScored);
    std::vector<float> weights = initial_weights(table, 7);
    for (float& weight : weights) weight *= 8;  // so that endings differ
    const std::vector<double> parameters = widen(weights);
    std::vector<double> nats, shifted;
    for (const Example& example : examples)
        for (std::size_t e = 0; e < 4; ++e) {
            nats.push_back(nats_of(table, parameters, example, e, 0));
            shifted.push_back(nats_of(table, parameters, example, e, 1));
        }
    const HellaSwagFile file(path);
    const HellaSwagScore want = score_of(file, nats), off_by_one = score_of(file, shifted);
    REQUIRE((want.right != off_by_one.right && want.right_norm != off_by_one.right_norm));
    REQUIRE(want.right != want.right_norm);
    const auto [ranks, micro_batch, stage] = GENERATE(std::tuple(1, 1, 0), std::tuple(2, 3, 1), std::tuple(3, 1, 2),
                                                      std::tuple(8, 16, 0));
    CAPTURE(ranks, micro_batch, stage);
    for (const HellaSwagScore& score : scores_of(path, weights, ranks, micro_batch, stage)) {
        CHECK(score.examples == 60);
        CHECK(score.right == want.right);
        CHECK(score.right_norm == want.right_norm);
    }
}

TEST_CASE("a signal to one rank, or one that is out of time, ends HellaSwag on all", "[ranks][hellaswag]") {
    const ScratchFolder folder;
    const std::string path = HellaSwagBytes(random_hellaswag(8, 61, 9), 61, 0).write(folder / "few.bin");
    const std::vector<float> zeros(std::size_t(ParameterTable(kScored).elements()));
    for (const HellaSwagScore& score : scores_of(path, zeros, 2, 1, 0, 15)) CHECK(score.signal == 15);
    for (const HellaSwagScore& score : scores_of(path, zeros, 2, 1, 0, 0, true))
        CHECK((score.out_of_time && score.signal == 0 && score.examples == 0));
}
