// data_order_test.cpp - the real program on small shards: every target is trained on or reported as dropped
#include "test/support/run_support.h"

using namespace test;

namespace {

// Shards of irregular sizes, one of them without any target. They hold 13 + 6 + 0 + 9 + 4 complete rows of 16 tokens,
// and 2 + 0 + 0 + 5 + 0 further targets.
struct SmallShards {
    TrainingFolder folder;
    static constexpr int kTargets = 210 + 96 + 0 + 149 + 64;

    SmallShards() {
        fs::remove(folder.path("train_0.bin"));
        std::mt19937 engine(2);
        int number = 0;
        for (const int size : {211, 97, 1, 150, 65}) {
            std::vector<std::uint16_t> ids;
            for (int i = 0; i < size; ++i) ids.push_back(i % 20 == 0 ? 256 : std::uint16_t(engine() % 256));
            ShardBytes(ids, 257, 256).write(folder.path("train_" + std::to_string(number++) + ".bin"));
        }
    }
    // Steps of 12 rows.
    Texts flags(const std::string& out, const Texts& more) const {
        return folder.flags(more + Texts{"-d", "192", "-v", "0", "--lr", "1e-3", "-o", folder.path(out)});
    }
};

double sum_of(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
}

}  // namespace

TEST_CASE("a run trains on every target, or prints how many are dropped", "[data_order][run]") {
    const SmallShards data;
    const Texts order = GENERATE(Texts{}, Texts{"--pad-last"}, Texts{"--pad-last", "--shuffle"});
    CAPTURE(order);
    const std::string output = data.folder.run(data.flags("out", order + Texts{"-b", "2", "--epochs", "2"})).exits(0);
    const auto steps = data.folder.log("out", "step");
    const double trained = sum_of(numbers(steps, "valid_tokens"));
    if (!order.empty()) {  // 14 + 6 + 0 + 10 + 4 rows per epoch
        CHECK(trained == 2 * SmallShards::kTargets);
        CHECK_THAT(output, !Contains("dropped"));
        CHECK(numbers(steps, "epoch") == std::vector<double>{0, 0, 0, 1, 1, 1});
        return;
    }
    CHECK(trained == 5 * 192);
    CHECK_THAT(output, Contains("  7 of 519 targets per epoch are dropped: the last row of a\n"
                                "  shard has fewer than --seq-len (--pad-last uses them)\n"
                                "  64 targets more at the end of the last epoch are dropped:\n"
                                "  too few for a step (--pad-last uses them)\n"));
    CHECK(numbers(steps, "epoch") == std::vector<double>{0, 0, 0, 1, 1});
    CHECK(trained + 2 * 7 + 64 == 2 * SmallShards::kTargets);
}
