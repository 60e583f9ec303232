// outer_support.h - workers with ranks as threads: how they are divided, exchange their changes, and what they compute
#pragma once
#include "llmc/model/muon.h"
#include "llmc/model/outer_steps.h"
#include "test/support/onebit_support.h"

namespace test {

using namespace llmc;
using kernels::DType;

inline OptimizerSettings settings_of(const OptimizerKind& kind, const OuterSettings& outer) {
    OptimizerSettings settings{.kind = &kind, .outer = outer};
    resolve_auto(settings.outer, std::max(int(outer.workers), 1), outer.seq_len);
    if (kind.own) settings.own = kind.own();
    return settings;
}
struct Inner {
    const OptimizerKind* kind;
    DType dtype;
};
inline const std::vector<Inner> kInner{{&kAdamW, DType::fp32}, {&kAdamW, DType::bf16}, {&kMuon, DType::fp32},
                                {&kMuon, DType::bf16}};

// Division of one rank each, or of several.
struct Division {
    int workers, ranks_each;
    int ranks() const { return workers * ranks_each; }
};
inline void divide(Context& context, int ranks_each) {
    Communicator& world = *context.world;
    if (ranks_each == 1) {
        context.worker = alone();
        return;
    }
    context.worker = world.split(world.rank() / ranks_each);
    context.across = world.split(world.rank() % ranks_each);
}
inline ModelSetup setup_of(int ranks, DType dtype = DType::fp32, int ranks_each = 1, int stage = 1) {
    ModelSetup setup = short_setup(ranks);
    setup.dtype = dtype;
    setup.sharding.stage = ranks_each > 1 ? stage : 0;
    return setup;
}

// How workers exchange their changes.
struct Exchange {
    int bits;
    bool errors;
    OuterSettings of(OuterSettings outer, int workers) const {
        outer.bits = bits;
        outer.errors = errors;
        outer.workers = workers;
        outer.seq_len = 8;
        return outer;
    }
};
inline const std::vector<Exchange> kExchanges{{32, false}, {4, false}, {4, true}, {1, true}};

// Weights after each step, and what the outer steps reported.
struct Course {
    std::vector<std::vector<float>> weights{};
    std::vector<kernels::StepScalars> scalars{};
    std::vector<std::optional<OuterRound>> rounds{};
    std::vector<float> momentum{}, errors{};
    OptimizerCounts counts{};
};
using Batches = std::vector<GlobalBatch>;

inline void make_steps(Trainer& trainer, const Batches& batches, std::size_t from, std::size_t to, Course& course) {
    for (std::size_t t = from; t < to; ++t) {
        course.scalars.push_back(trainer.step(batches[t], 1, 1e-2f));
        course.weights.push_back(trainer.master_weights());
        course.rounds.push_back(trainer.optimizer().round_after(std::int64_t(t) + 1));
    }
    course.momentum = trainer.read_state(trainer.state_file("outer"));
    course.errors = trainer.read_state(trainer.state_file("outer_errors"));
    course.counts = trainer.optimizer().counts();
}

inline std::vector<Course> run(int ranks, const OptimizerSettings& settings, const Batches& batches,
                        DType dtype = DType::fp32, int ranks_each = 1, int stage = 1) {
    return on_ranks<Course>(ranks, [&](Context& context) {
        if (settings.outer.every > 0) divide(context, ranks_each);
        Trainer trainer(context, setup_of(ranks, dtype, ranks_each, stage), settings);
        Course course;
        make_steps(trainer, batches, 0, batches.size(), course);
        return course;
    });
}

inline Batches batches_of(unsigned steps) {
    Batches batches;
    for (unsigned t = 0; t < steps; ++t) batches.push_back(short_batch(t));
    return batches;
}

}  // namespace test
