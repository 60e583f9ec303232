// outer_steps_resume_ranks_test.cpp - the state of workers in a checkpoint, with ranks as threads
#include "llmc/model/state_files.h"
#include "test/support/outer_support.h"

using namespace llmc;
using namespace test;

namespace {

// Saves as a checkpoint does, and loads in new trainers of `to` workers.
struct Saved {
    std::vector<float> weights;
    std::map<std::string, int> files;
};

void save(Trainer& trainer, const ScratchFolder& folder, Communicator& ranks, Saved& saved,
          std::vector<OptimizerCounts>& counts, int ranks_each = 1) {
    const Optimizer& optimizer = trainer.optimizer().optimizer();
    const auto anchor = optimizer.weights_to_save();
    std::vector<float> flat(ranks.rank() == 0 ? std::size_t(trainer.table().elements()) : 0);
    if (anchor.empty()) trainer.model().copy_master_weights_to_host(flat);
    else trainer.model().copy_to_host(anchor, ranks_each == 1, flat);
    for (const StateFile& file : optimizer.state()) {
        const int files = file.files(ranks.size(), ranks_each);
        if (ranks.rank() < files)
            write_state(folder / state_file_name(file.name, ranks.rank(), files), file, trainer.read_state(file));
        if (ranks.rank() == 0) saved.files[file.name] = files;
    }
    counts[std::size_t(ranks.rank())] = trainer.optimizer().counts();
    if (ranks.rank() == 0) saved.weights = flat;
    ranks.barrier();
}

std::string load(Trainer& trainer, const ScratchFolder& folder, const Saved& saved, const OptimizerCounts& counts,
                 Communicator& ranks) {
    trainer.model().load(saved.weights);
    std::string notes;
    trainer.optimizer().load(counts, [&](const StateFile& file) {
        const auto files = saved.files.find(file.name);
        notes += read_state(file, {.folder = folder.path(), .files = files == saved.files.end() ? 0 : files->second,
                                   .rank = ranks.rank(), .ranks = ranks.size()},
                            [&](std::span<float> to, std::span<const float> values) {
            std::ranges::copy(values, to.begin());
        });
    });
    trainer.optimizer().round_parameters(trainer.model());
    return notes;
}

}  // namespace

TEST_CASE("workers of several ranks continue with others from the mean of what they had", "[outer][ranks]") {
    if (!device::memory_is_host_memory()) return;
    const Inner inner = GENERATE(Inner{&kAdamW, DType::fp32}, Inner{&kMuon, DType::bf16});
    const Exchange exchange = GENERATE(Exchange{32, false}, Exchange{1, true});
    const std::size_t at = GENERATE(1, 4, 5);  // together, between two rounds, and in one
    const Batches batches = batches_of(8);
    const ScratchFolder folder;
    Saved saved;
    std::vector<OptimizerCounts> counts(4);
    struct State {
        std::vector<float> weights;
        std::string notes;
        Course after;
    };
    const auto settings_for = [&](int workers) {
        return settings_of(*inner.kind, exchange.of({.every = 2, .start_step = 2, .last_step = 8}, workers));
    };
    const auto of_two = on_ranks<std::vector<float>>(4, [&](Context& context) {
        divide(context, 2);
        Trainer trainer(context, setup_of(4, inner.dtype, 2), settings_for(2));
        Course course;
        make_steps(trainer, batches, 0, at, course);
        save(trainer, folder, *context.world, saved, counts, 2);
        return trainer.master_weights();
    });
    const auto loaded = [&](const Division& to) {
        return on_ranks<State>(to.ranks(), [&](Context& context) {
            divide(context, to.ranks_each);
            Trainer trainer(context, setup_of(to.ranks(), inner.dtype, to.ranks_each), settings_for(to.workers), 7);
            State state{.weights = {}, .notes = load(trainer, folder, saved, counts[0], *context.world), .after = {}};
            state.weights = trainer.master_weights();
            make_steps(trainer, batches, at, batches.size(), state.after);
            return state;
        });
    };
    CAPTURE(inner.kind->title, exchange.bits, at);
    for (const Division& to : {Division{4, 1}, Division{2, 1}, Division{1, 4}}) {
        if (to.workers == 1 && exchange.bits < 32) continue;
        const auto states = loaded(to);
        CAPTURE(to.workers, states[0].notes);
        if (at == 1) CHECK(states[0].notes.empty());
        else
            CHECK_THAT(states[0].notes, Contains(to.ranks() == 4 ? std::to_string(to.workers) + " worker"
                                                                 : "2 ranks instead of 4"));
        if (inner.dtype == DType::fp32)
            for (std::size_t i = 0; i < states[0].weights.size(); ++i)
                if (states[0].weights[i] != float((double(of_two[0][i]) + double(of_two[2][i])) / 2))
                    FAIL("weight " << i);
        for (std::size_t rank = std::size_t(to.ranks_each); rank < states.size(); ++rank)
            CHECK(states[rank].after.weights.back() == states[0].after.weights.back());
    }
}
