// run_evaluation.cpp - from what was computed to what is told
#include "llmc/run/run_evaluation.h"

#include "kernels/device/range.h"
#include "llmc/base/standard_streams.h"
#include "llmc/comm/agreement.h"

namespace llmc {

int RunEvaluation::validate(std::int64_t step) {
    const device::Range range("validation");
    ValidationBatches& batches = *plan_.validation;
    const ValidationLoss x =
        validation_loss(batches, model_, upload_, plan_.setup.shape, context_, signal_so_far());
    unreadable_ = x.unreadable;
    if (x.signal == 0 && !unreadable_) {
        if (!bytes_counted_ && context_.communicator->rank() == 0)  // the targets are the same every time
            bits_per_byte_ = bits_per_byte_of_nat(batches, *plan_.tokenizer);
        bytes_counted_ = true;
        report_.validation(step, x.loss, batches.targets(), x.seconds,
                           bits_per_byte_ ? std::optional(x.loss * *bits_per_byte_) : std::nullopt);
    }
    return x.signal;
}

HellaSwagScore RunEvaluation::score_hellaswag(std::int64_t step, const OutOfTime& out_of_time) {
    const HellaSwagScore x =
        hellaswag_score(*plan_.hellaswag, model_, upload_, context_, signal_so_far(), out_of_time);
    if (x.signal == 0 && !x.out_of_time) report_.hellaswag(step, x);
    if (x.signal == 0 && x.out_of_time && context_.communicator->rank() == 0)
        tell_stderr("note: --max-minutes end HellaSwag before it is scored; a run that goes on begins with it");
    return x;
}

int RunEvaluation::sample(std::int64_t step) {
    model_.wait_for_parameters();
    const Samples x = draw_samples(*plan_.sampler, model_, context_, signal_so_far());
    on_first_rank(*context_.communicator, [&] {
        for (const std::string& text : x.texts) report_.sample(step, text);
    });
    return x.signal;
}

}  // namespace llmc
