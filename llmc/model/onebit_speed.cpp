// onebit_speed.cpp - times the kernels of an update with and without compression, without a network
#include "llmc/model/onebit_adam.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/onebit_adam.h"
#include "kernels/sketch.h"
#include "llmc/base/number_text.h"
#include "llmc/model/context.h"

namespace llmc {
namespace {

using kernels::OnebitGroup, kernels::OnebitPlan, kernels::OnebitTile;

// One bucket without padding, for `ranks` workers; this rank is the first.
class UpdateTrial {
public:
    UpdateTrial(std::int64_t size, int ranks, device::StreamRef stream)
        : stream_(stream),
          plan_(kernels::onebit_plan(kernels::onebit_layout(size, ranks), 0, {})),
          served_(kernels::onebit_plan_of_chunk(plan_, 0)),
          tiles_(std::span<const OnebitTile>(plan_.tiles), stream),
          served_tiles_(std::span<const OnebitTile>(served_.tiles), stream),
          groups_(std::span<const OnebitGroup>(plan_.groups), stream),
          served_groups_(std::span<const OnebitGroup>(served_.groups), stream),
          gradient_(std::size_t(size)), error_(gradient_.size()), momentum_(gradient_.size()),
          second_(gradient_.size()), master_(gradient_.size()), sums_(std::size_t(plan_.layout.chunk)),
          server_error_(sums_.size()), sketch_(kernels::kSketchColumns), scratch_(kernels::sketch_scratch()),
          largest_(plan_.tiles.size()),
          messages_(std::size_t(plan_.layout.message_words() * ranks)),
          reply_(std::size_t(plan_.layout.message_words())),
          partial_(plan_.tiles.size()) {
        for (auto* const array : {&error_, &momentum_, &server_error_}) array->zero(stream);
        messages_.zero(stream);
        std::vector<float> values(gradient_.size()), squares(values.size());
        std::uint32_t random = 1;
        for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = float(std::int32_t(random = random * 1664525u + 1013904223u)) * 1e-12f;
            squares[i] = values[i] * values[i] + kEps;
        }
        const std::vector<std::uint32_t> all(values.size() / 32, ~0u);
        const std::vector<std::int32_t> yes{1};
        const std::vector<kernels::DecaySegment> segment{{.end = size, .decays = 1}};
        std::vector<kernels::StepScalars> scalars(1);
        scalars[0].grad_scale = scalars[0].first_correction = scalars[0].second_correction = 1;
        gradient_.upload(values, stream);
        master_.upload(values, stream);
        second_.upload(squares, stream);
        active_ = {std::span(all), stream};
        finite_ = {std::span(yes), stream};
        segments_ = {std::span(segment), stream};
        scalars_ = {std::span<const kernels::StepScalars>(scalars), stream};
        device::sync(stream);
    }

    void in_full() {
        kernels::adamw<float>({.parameter = master_.span(), .master = master_.span(), .m = momentum_.span(),
                               .v = second_.span(), .grad = gradient_.span(), .segments = segments_.span(),
                               .scalars = scalars_.span(), .beta1 = 0.9f, .beta2 = 0.95f, .eps = kEps,
                               .weight_decay = 0.1f}, stream_);
    }

    void compressed() {
        const kernels::OnebitLayout layout = plan_.layout;
        kernels::sketch({.sketch = sketch_.span(), .scratch = scratch_.span(), .values = gradient_.span(), .scale = 1,
                         .draw = 1}, stream_);
        kernels::onebit_compress({.layout = layout, .tiles = tiles_.span(), .values = gradient_.span(),
                                  .error = error_.span(), .messages = messages_.span(), .partial = partial_.span(),
                                  .active = active_.span(), .momentum = momentum_.span(),
                                  .second_moment = second_.span(), .momentum_weight = 0.9f, .gradient_weight = 0.1f,
                                  .eps = kEps}, stream_);
        kernels::onebit_scales({.layout = layout, .groups = groups_.span(), .partial = partial_.span(),
                                .messages = messages_.span(), .one = true}, stream_);
        kernels::onebit_serve({.layout = layout, .tiles = served_tiles_.span(), .sums = sums_.span(),
                               .error = server_error_.span(), .received = messages_.span(), .reply = reply_.span(),
                               .partial = partial_.span(), .active = active_.span(), .one = true}, stream_);
        kernels::onebit_scales({.layout = layout, .groups = served_groups_.span(), .partial = partial_.span(),
                                .messages = reply_.span()}, stream_);
        kernels::onebit_adam<float>({.layout = layout, .tiles = tiles_.span(), .compensated = gradient_.span(),
                                     .error = error_.span(), .messages = messages_.span(),
                                     .replies = messages_.span(), .active = active_.span(), .one = true,
                                     .parameter = master_.span(), .master = master_.span(), .m = momentum_.span(),
                                     .v = second_.span(), .largest = largest_.span(), .segments = segments_.span(),
                                     .scalars = scalars_.span(), .eps = kEps, .weight_decay = 0.1f,
                                     .update_space = true}, stream_);
        kernels::onebit_commit({.layout = layout, .tiles = served_tiles_.span(), .sums = sums_.span(),
                                .error = server_error_.span(), .reply = reply_.span(), .finite = finite_.span(),
                                .active = active_.span()}, stream_);
    }

private:
    static constexpr float kEps = 1e-8f;

    device::StreamRef stream_;
    OnebitPlan plan_, served_;  // for the bucket, and for the chunk that this rank serves
    device::Array<OnebitTile> tiles_, served_tiles_;
    device::Array<OnebitGroup> groups_, served_groups_;
    device::Array<float> gradient_, error_, momentum_, second_, master_, sums_, server_error_, sketch_, scratch_,
        largest_;
    device::Array<std::uint32_t> messages_, reply_, active_;
    device::Array<double> partial_;
    device::Array<std::int32_t> finite_;
    device::Array<kernels::DecaySegment> segments_;
    device::Array<kernels::StepScalars> scalars_;
};

template <class Work>
double seconds_of(device::StreamRef stream, Work&& work) {
    const auto began = std::chrono::steady_clock::now();
    work();
    device::sync(stream);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

double measure_compression(std::int64_t elements, int ranks, Context& context) {
    if (elements == 0) return 0;
    const std::int64_t whole = std::int64_t(128) * ranks;  // no padding
    const std::int64_t some = std::clamp<std::int64_t>(elements / 2, 1, std::int64_t(1) << 22);
    const std::int64_t size = round_up(some, whole);
    const device::SyncIfThrown guard(context.stream);
    UpdateTrial trial(size, ranks, context.stream);
    double in_full = std::numeric_limits<double>::infinity(), compressed = in_full;
    for (int repetition = 0; repetition < 3; ++repetition) {  // alternating, so that both start with similar caches
        compressed = std::min(compressed, seconds_of(context.stream, [&] { trial.compressed(); }));
        in_full = std::min(in_full, seconds_of(context.stream, [&] { trial.in_full(); }));
    }
    return std::max(0.0, compressed - in_full) * double(elements) / double(size);
}

OptimizerReport report_compression(const std::string& prefix, const std::string& unit, std::int64_t elements, int ranks,
                                   double bytes, Context& context) {
    const double seconds = measure_compression(elements, ranks, context),
                 bits = 2.0 * (ranks - 1) / ranks * double(elements) * (8 * bytes - 1), gigabits = bits / seconds / 1e9;
    const auto fields = [](const nlohmann::json& milliseconds, const nlohmann::json& below) {
        return JsonValue({{"compression_ms", milliseconds}, {"compression_pays_below_gbit_s", below}});
    };
    const std::string line = prefix + "on this machine compression adds ", to = " to a " + unit + " of AdamW";
    if (seconds == 0) return {line + "no computation time" + to + '\n', fields(0, nullptr)};
    return {line + format("%.3g ms of computation", seconds * 1e3) + to + "; a compressed " + unit +
                format(" is faster if a rank's share of its machine's link is below %.3g Gbit/s\n", gigabits),
            fields(seconds * 1e3, gigabits)};
}

}  // namespace llmc
