// outer_steps.h - outer steps (DiLoCo): workers make local steps with an optimizer, and synchronize after every round
//
// Data-parallel   the first `start_step` steps: all ranks sum their gradients, and every worker makes the same update.
// Local           a worker makes steps with its share of the batch, its own moments and its own decisions to clip and
//                 skip. After every `every`-th of these steps, and after the last step of the run, the outer step: the
//                 mean p of all workers' weights, then SGD with Nesterov's momentum on the change p - anchor
//                 (kernels/outer.h). All workers continue from the new anchor, which is the model that a run evaluates
//                 and saves. If the mean is not finite, they return to the old anchor.
//
// With 4 bits or 1 per element (onebit_mean.h) workers exchange their changes divided by L, the sum of the learning
// rates of the round: errors that are carried over, always with 1 bit, are then in units of an update, and shrink with
// the learning rate. A scale per tensor within a chunk; rows that no token or position of the run has are left out.
//
// A worker is one rank, which stores all weights and all moments; or several, which sum their gradients in every step
// and divide the optimizer's state (ZeRO stage 1, or 2 with the gradients): then a rank makes the outer step of what it
// owns, together with the ranks of other workers that own the same. State in device memory: the anchor, and unless the
// momentum is 0, u, both fp32; the gradient's memory holds the sums. A checkpoint has u once, the inner optimizer's
// state of every worker and, within a round, its weights.
//
// Source    Douillard et al. 2023, arXiv 2311.08105 (DiLoCo); Therien et al. 2025, arXiv 2505.23725 (MuLoCo).
#pragma once
#include "llmc/model/optimizer.h"

namespace llmc {

struct OnebitMeanSettings;

inline constexpr const char* kOuterWorker = "worker";  // the state's file that checkpoints within a round have

// Decorates an optimizer that exists once per worker (Settings::world of the exchange). Throws Error unless the ZeRO
// stage is 1 or 2 in workers of several ranks, and 0 in those of one.
std::unique_ptr<Optimizer> make_outer_steps(std::unique_ptr<Optimizer> inner, const Model& model,
                                            GradientExchange& gradients, const OptimizerSettings& settings,
                                            Context& context);

// Which part of the run it is in; the same on all workers.
struct OuterCounts {
    std::int64_t local_after = -1;  // the number of data-parallel steps; -1: no local step yet
    std::int64_t round_began = 0;   // the number of steps before the round
    std::int64_t rounds = 0;        // completed
    int skipped_in_a_row = 0;       // of the last outer steps
    double rate_sum = 0;            // of the learning rates of the round's steps
    bool operator==(const OuterCounts&) const = default;
};
// From Optimizer::counts() after `steps` steps, also of a run without outer steps. Throws Error that starts with
// `where` for values that no run can have.
OuterCounts outer_counts(const JsonValue& counts, std::int64_t steps, const std::string& where);

// ---- what the program knows of outer steps, as OptimizerKind of an optimizer (outer_start.cpp)

void add_outer_options(OptionList& list, OuterSettings& settings);
// Those of the run that saved these options, as to_json() writes them, in `file`.
OuterSettings outer_settings_in(const JsonValue& options, const std::string& file);
// The number of ranks of a worker: with outer steps, else all. Throws Error if --outer-workers does not divide `ranks`.
int ranks_of_worker(const OuterSettings& settings, int ranks);
// Replaces auto, for this number of workers.
void resolve_auto(OuterSettings& settings, int workers, std::int64_t seq_len);
// Throws Error for settings without auto that do not match a worker or the length of the run.
void check_outer_steps(const OuterSettings& settings, const Sharding& worker);
OptimizerReport report_outer_steps(const OptimizerRun& run);
// How 4 bits or 1 are exchanged.
OnebitMeanSettings outer_mean(const OuterSettings& settings);
// Device bytes in addition to those of the inner optimizer, for the memory plan.
std::vector<OptimizerBytes> outer_bytes(const OuterSettings& settings, const ParameterTable& table,
                                        const Sharding& sharding);
// With 1 bit per element: what compression costs, as 1-bit Adam's; otherwise empty. Waits for the device.
OptimizerReport measure_outer_steps(const OptimizerRun& run, Context& context);
// What a worker sends to others in an outer step, in bytes.
double outer_bytes_sent(const OuterSettings& settings, const ParameterTable& table, Sharding sharding);

}  // namespace llmc
