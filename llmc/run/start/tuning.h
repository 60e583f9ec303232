// tuning.h - the choices by time of a run (kernels/tuning): from a file, timed where that has none, alike on all ranks,
// and back into the file
#pragma once
#include "llmc/comm/agreement.h"
#include "llmc/model/context.h"
#include "llmc/run/choice_file.h"
#include "llmc/run/options.h"

namespace llmc {

// Every rank makes one and calls the same. Rank 0 alone reads and writes the file. Among ranks with equal devices and
// libraries the first one times, and the others take what it found: so no two of them differ.
class Tuning {
public:
    // From the file to context.choices. The context must outlive it. With --dry-run nothing is timed or written.
    Tuning(const Options& options, Context& context);

    // `ask` asks for choices, on the ranks that time; it must not call the communicator. On return, every rank knows
    // what was timed. What `ask` throws leaves on every rank.
    template <class Ask>
    void choose(Ask&& ask) {
        if (!times_) return;
        context_.choices->timing = is_first_of_kind_;
        together(*context_.communicator, [&] {
            if (is_first_of_kind_) ask();
        });
        context_.choices->timing = false;
        share();
        report_notes();
    }
    // Rank 0 adds what was timed to the file, if anything was.
    void save();

    // For people, on rank 0: what is wrong with the file, and what could not be timed. One line each.
    const std::vector<std::string>& notes() const { return notes_; }
    // "choices: 12 timed now, 3 from FILE"; empty where none was needed.
    std::string describe() const;
    nlohmann::ordered_json fields() const;  // for the log

private:
    void share();
    void report_notes();  // of choices that could not be made on this rank

    Tune tune_;
    Context& context_;
    std::string file_;
    bool times_, is_first_of_kind_ = true, may_write_ = false;
    ChoicesByDevice news_;  // of all ranks
    std::size_t noted_ = 0;  // of the choices' notes
    std::vector<std::string> notes_;
};

}  // namespace llmc
