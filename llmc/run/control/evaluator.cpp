// evaluator.cpp - from a computed result to its report
#include "llmc/run/control/evaluator.h"

#include "kernels/device/range.h"
#include "llmc/base/clock.h"
#include "llmc/base/standard_streams.h"
#include "llmc/comm/agreement.h"

namespace llmc {

int Evaluator::validate(std::int64_t made) {
    const device::Range range("validation");
    const double began = seconds_now();
    const std::span<ValidationSet> sets = inputs_.validation;
    const ValidationLoss x = validation_loss(sets, model_, upload_, inputs_.shape, context_, received_signal());
    unreadable_ = x.unreadable;
    if (x.signal == 0 && !unreadable_) {
        const double seconds = seconds_now() - began;
        if (!bytes_counted_ && context_.world->rank() == 0)  // the targets are the same in every validation
            bits_per_byte_ = nats_to_bits_per_byte(sets, inputs_.tokenizer);
        bytes_counted_ = true;
        const auto [best, warning] = health_.validation(made, x.loss);
        std::int64_t targets = 0;
        SetLosses losses;
        for (const ValidationSet& set : sets) {
            targets += set.batches.targets();
            losses.emplace_back(set.pattern, x.losses[losses.size()]);
        }
        report_.validation(made, x.loss, targets, seconds,
                           bits_per_byte_ ? std::optional(x.loss * *bits_per_byte_) : std::nullopt, best, losses);
        if (warning) report_.warn(made, *warning);
    }
    return x.signal;
}

HellaSwagScore Evaluator::score_hellaswag(std::int64_t made, const TimeIsUp& time_is_up) {
    const HellaSwagScore x =
        hellaswag_score(*inputs_.hellaswag, model_, upload_, context_, received_signal(), time_is_up);
    if (x.signal == 0 && !x.out_of_time) report_.hellaswag(made, x);
    if (x.signal == 0 && x.out_of_time && context_.world->rank() == 0)
        print_stderr("note: --max-minutes ended HellaSwag before it was scored; a resumed run starts with it");
    return x;
}

int Evaluator::sample(std::int64_t made) {
    model_.wait_for_parameters();
    const Samples x = draw_samples(*inputs_.sampler, model_, context_, received_signal());
    on_first_rank(*context_.world, [&] {
        for (const std::string& text : x.texts) report_.sample(made, text);
    });
    return x.signal;
}

}  // namespace llmc
