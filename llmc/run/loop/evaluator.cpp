// evaluator.cpp - from a computed result to its report
#include "llmc/run/loop/evaluator.h"

#include "kernels/device/range.h"
#include "llmc/base/clock.h"
#include "llmc/base/standard_streams.h"
#include "llmc/comm/agreement.h"

namespace llmc {

int Evaluator::validate(std::int64_t made) {
    const device::Range range("validation");
    const double began = seconds_now();
    std::vector<ValidationSet>& sets = loop_.batches.validation;
    const ValidationLoss x = validation_loss(sets, *loop_.model, loop_.upload, loop_.plan.setup.shape, loop_.context,
                                             received_signal());
    unreadable_ = x.unreadable;
    if (x.signal == 0 && !unreadable_) {
        const double seconds = seconds_now() - began;
        if (!bytes_counted_ && loop_.first_rank())  // the targets are the same in every validation
            bits_per_byte_ = nats_to_bits_per_byte(sets, *loop_.plan.tokenizer);
        bytes_counted_ = true;
        const auto [best, warning] = loop_.health.validation(made, x.loss);
        std::int64_t targets = 0;
        SetLosses losses;
        for (const ValidationSet& set : sets) {
            targets += set.batches.targets();
            losses.emplace_back(set.pattern, x.losses[losses.size()]);
        }
        loop_.report->validation(made, x.loss, targets, seconds,
                           bits_per_byte_ ? std::optional(x.loss * *bits_per_byte_) : std::nullopt, best, losses);
        if (warning) loop_.report->warn(made, *warning);
    }
    return x.signal;
}

HellaSwagScore Evaluator::score_hellaswag(std::int64_t made, const TimeIsUp& time_is_up) {
    const HellaSwagScore x = hellaswag_score(*loop_.batches.hellaswag, *loop_.model, loop_.upload, loop_.context,
                                             received_signal(), time_is_up);
    if (x.signal == 0 && !x.out_of_time) loop_.report->hellaswag(made, x);
    if (x.signal == 0 && x.out_of_time && loop_.first_rank())
        print_stderr("note: --max-minutes ended HellaSwag before it was scored; a resumed run starts with it");
    return x;
}

int Evaluator::sample(std::int64_t made) {
    loop_.model->wait_for_parameters();
    const Samples x = draw_samples(*loop_.plan.sampler, *loop_.model, loop_.context, received_signal());
    on_first_rank(*loop_.context.world, [&] {
        for (const std::string& text : x.texts) loop_.report->sample(made, text);
    });
    return x.signal;
}

}  // namespace llmc
