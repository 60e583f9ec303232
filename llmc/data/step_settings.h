// step_settings.h - the size of steps and the length of a run, as flags say them
#pragma once
#include <cstdint>
#include <string>

#include "llmc/base/option.h"
#include "llmc/data/step_plan.h"

namespace llmc {

struct BatchSettings {
    std::int64_t micro_batch = 4;  // 0: auto, until a run has planned its memory
    std::int64_t seq_len = 0;      // 0: auto, until a run knows its model
    std::int64_t tokens = 0;       // of a step; 0: one micro-batch per rank
    std::string schedule{};        // sizes_of_steps(); empty: all steps have `tokens`
};
void add_options(OptionList& list, BatchSettings& settings);
// From --batch-schedule, or -d. Throws Error for anything but increasing entries FROM:TOKENS, the first one from 0.
BatchSchedule sizes_of_steps(const BatchSettings& batch, std::int64_t ranks);

struct LengthSettings {
    std::int64_t steps = 0, tokens = 0;  // at most one of them; both 0: from epochs or minutes
    std::int64_t epochs = 0;             // used if both are 0; 0: auto
    double minutes = 0;                  // 0: no limit

    // The length of the run is a time, not a number of steps.
    bool is_timed() const { return minutes > 0 && !has_steps() && epochs == 0; }
    bool has_steps() const { return steps > 0 || tokens > 0; }
    // Over the training data, if the length is neither a number of steps nor a time.
    std::int64_t passes() const { return epochs > 0 ? epochs : 1; }
};
void add_options(OptionList& list, LengthSettings& settings);

}  // namespace llmc
