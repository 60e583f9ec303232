// step_settings.cpp - flags of the batch and of the length of a run
#include "llmc/data/step_settings.h"

#include <algorithm>
#include <limits>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/base/value_text.h"

namespace llmc {

void add_options(OptionList& list, BatchSettings& s) {
    const Quantity step{"step"};
    list.group("Batch and length");
    list.entry("b,micro-batch", s.micro_batch,
        "micro-batch size: sequences in one forward and backward pass of a rank; auto: the largest that divides a "
        "step's sequences per rank (see -d), fits the memory plan and is not larger than speed needs",
        Whole{0, 1 << 20, true}, ByRun{});
    list.entry("t,seq-len", s.seq_len,
        "sequence length, in tokens; auto: by the size of the model, at most its positions",
        Whole{0, 1 << 20, true}, OnResume::same, ByRun{});
    list.entry("d,total-batch-tokens", s.tokens,
        "tokens in one optimizer step over all ranks, a multiple of micro-batch * seq-len * ranks; gradients are "
        "accumulated over the micro-batches; 0: one micro-batch per rank",
        Whole{0, kMany}, step, ByRun{});
    list.entry("batch-schedule", s.schedule,
        "tokens in one step, instead of -d, as FROM:TOKENS,...; 0:65536,200M:131072: 131072 in steps that begin "
        "after 200M tokens or more; empty: -d for all steps",
        step);
    list.check([&s] {
        sizes_of_steps(s, 1);
        const std::int64_t micro = s.micro_batch * s.seq_len;  // both below 2^20
        require(micro <= std::numeric_limits<int>::max(), "--micro-batch times --seq-len", micro,
                "at most 2147483647 tokens", "decrease one of them and increase -d");
        require(s.micro_batch > 0 || s.tokens > 0 || !s.schedule.empty(), "--micro-batch",
                "auto without --total-batch-tokens", "the tokens of a step, of which the micro-batch is a part",
                "set -d, or a number for -b");
    });
}

void add_options(OptionList& list, LengthSettings& s) {
    const Quantity length{"length"};
    list.group("Batch and length");
    list.entry("x,max-steps", s.steps, "number of optimizer steps; 0: as many as --epochs or --max-minutes needs",
        Whole{0, kMany}, length);
    list.entry("max-tokens", s.tokens,
        "instead of --max-steps: tokens of the run, rounded up to whole steps (see -d); 0: not set", Whole{0, kMany},
        length);
    list.entry("epochs", s.epochs,
        "number of passes over the training data, without --max-steps and --max-tokens; auto: 4, or with "
        "--max-minutes as many as fit and help",
        Whole{0, 1000000, true}, length, ByRun{});
    list.entry("max-minutes", s.minutes,
        "without --max-steps, --max-tokens and --epochs: length of the whole run, with the time before a resume, "
        "validations, samples and checkpoints; the learning rate then follows the time. With one of them: time from "
        "this start until the run ends early, with a last validation, samples and a checkpoint, within a round of "
        "--outer-steps with a checkpoint only. 0: no limit",
        Real{0, 1e7});
}

BatchSchedule sizes_of_steps(const BatchSettings& batch, std::int64_t ranks) {
    constexpr std::size_t kMost = 100;
    const std::string_view text = batch.schedule;
    if (batch.schedule.empty())
        return {{0, batch.tokens > 0 ? batch.tokens : batch.micro_batch * batch.seq_len * ranks}};
    BatchSchedule schedule;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        const std::string entry(text.substr(begin, end - begin));
        const std::size_t colon = entry.find(':');
        const std::string part = entry.empty() ? ", with an empty entry" : ", with the entry " + in_quotes(entry);
        require(colon != entry.npos, "--batch-schedule", in_quotes(text) + (entry == text ? "" : part),
                "entries FROM:TOKENS, such as 0:65536,200M:131072");
        const std::string which = "--batch-schedule: entry " + std::to_string(schedule.size() + 1);
        require(schedule.size() < kMost, which, "too many", "at most " + std::to_string(kMost) + " entries");
        const std::int64_t from = parse_number(which, entry.substr(0, colon), std::int64_t(0), kMany),
                           least = schedule.empty() ? 0 : schedule.back().from + 1;
        require(from >= least && (least > 0 || from == 0), which + ": its first token", from,
                least == 0 ? "0, the start of the run" : std::to_string(least) + " or more, after the one before");
        schedule.push_back({from, parse_number(which, entry.substr(colon + 1), std::int64_t(1), kMany)});
        begin = end + 1;
    }
    return schedule;
}

}  // namespace llmc
