// tuning.h - autotuning of a run's algorithms (kernels/tuning): results are read from a file, timed if missing, shared
// with all ranks, and written back to the file
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"
#include "llmc/base/names.h"
#include "llmc/base/number_text.h"
#include "llmc/base/option.h"
#include "llmc/base/terminal.h"
#include "llmc/comm/agreement.h"
#include "llmc/model/context.h"
#include "llmc/model/tune_file.h"

namespace llmc {

inline constexpr Named<kernels::Bf16Arithmetic> kBf16Arithmetics[] = {{"measure", kernels::Bf16Arithmetic::measure},
                                                                      {"native", kernels::Bf16Arithmetic::native},
                                                                      {"widen", kernels::Bf16Arithmetic::widen}};

// Algorithms: the library's default; stored autotuning results, timed if missing; all timed again.
enum class Tune { off, automatic, again };
inline constexpr Named<Tune> kTunes[] = {{"off", Tune::off}, {"auto", Tune::automatic}, {"again", Tune::again}};

struct AlgorithmSettings {
    kernels::AttentionMethod attention = kernels::AttentionMethod::automatic;
    kernels::Bf16Arithmetic bf16_arithmetic = kernels::Bf16Arithmetic::measure;
    Tune tune = Tune::automatic;
    std::string file{};          // of autotuning results; empty: the user's
    bool deterministic = false;
};
void add_options(OptionList& list, AlgorithmSettings& settings);

// Every rank constructs one and makes the same calls. Only rank 0 reads and writes the file. Among ranks with the same
// device and libraries the first one times, and the others use its results: so all of them use the same algorithms.
class Tuning {
public:
    // Reads the file into context.tuned. The context must outlive it. Without `times` nothing is timed or written.
    Tuning(const AlgorithmSettings& settings, bool times, Context& context);

    // Calls `ask`, which requests algorithms, on the ranks that time; it must not call the communicator. On return
    // every rank has the results. What `ask` throws is thrown on every rank.
    template <class Ask>
    void choose(Ask&& ask) {
        if (!times_) return;
        context_.matmul.replan();  // the speed was measured before
        context_.tuned->timing = is_first_of_kind_;
        ProgressLine progress(context_.world->rank() == 0, /*seconds_elsewhere=*/5);
        context_.tuned->on_timing = [&] {
            if (progress.due())
                progress.show("autotuning: " + counted(std::int64_t(count(context_.tuned->timed())), "problem") +
                              " timed; the next run reads them (--tune=off: none)");
        };
        together(*context_.world, [&] {
            if (is_first_of_kind_) ask();
        });
        context_.tuned->timing = false;
        context_.tuned->on_timing = nullptr;
        share();
        context_.attention.replan();
        report_notes();
    }
    // Seconds that were measured for `what`, of the file; empty: none. The same on every rank.
    std::optional<double> speed(const std::string& what) const;
    void keep_speed(const std::string& what, double seconds);
    // Rank 0 adds new results to the file.
    void save();

    // Problems with the file, and what could not be timed, one line each, on rank 0.
    const std::vector<std::string>& notes() const { return notes_; }
    // "autotuned algorithms: 12 timed now, 3 from FILE"; empty: the run needs none.
    std::string describe() const;
    nlohmann::ordered_json fields() const;  // for the log

private:
    void share();
    void report_notes();  // of autotuning that failed on this rank

    Tune tune_;
    Context& context_;
    std::string file_;
    bool times_, is_first_of_kind_ = true, may_write_ = false;
    TunedByDevice new_results_;  // of all ranks
    std::size_t noted_ = 0;  // of the notes that are printed
    std::vector<std::string> notes_;
};

}  // namespace llmc
