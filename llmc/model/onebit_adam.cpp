// onebit_adam.cpp - the phases of 1-bit Adam and their updates
#include "llmc/model/onebit_adam.h"

#include <regex.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/onebit_adam.h"
#include "llmc/base/json_text.h"
#include "llmc/model/adamw.h"
#include "llmc/model/context.h"

namespace llmc {
namespace {

constexpr std::size_t kDownloadedAtOnce = std::size_t(1) << 20;  // elements of a moment
constexpr std::size_t kLongestExpression = 1000;                 // because the C library's parser recurses

// The number of workers: ranks, or nodes.
int workers_of(const OnebitSettings& settings, int ranks) { return ranks / settings.ranks_per_node; }

bool compresses(const OnebitSettings& settings, int ranks) {
    return !settings.frozen_only && workers_of(settings, ranks) > 1;
}

bool has_shadow(const OptimizerSettings& settings) { return onebit_of(settings).shadow_beta2 > float(settings.beta2); }

// Consecutive tensors that are all excluded from compression, or all compressed.
struct TensorRange {
    ElementRange flat;
    bool live;  // excluded: full gradients, and a second moment that is still updated
    std::size_t first_segment, segments;
};

std::vector<TensorRange> tensor_ranges(const ParameterTable& table, const std::vector<bool>& left_out) {
    std::vector<TensorRange> ranges;
    for (std::size_t i = 0; i < left_out.size(); ++i) {
        const std::int64_t first = table.tensors()[i].offset;
        if (ranges.empty() || ranges.back().live != left_out[i])
            ranges.push_back({.flat = {.first = first, .size = 0}, .live = left_out[i], .first_segment = i,
                                 .segments = 0});
        const std::int64_t end = i + 1 < left_out.size() ? table.tensors()[i + 1].offset : table.elements();
        ranges.back().flat.size = end - ranges.back().flat.first;
        ++ranges.back().segments;
    }
    return ranges;
}

// Calls use(index of the first element, elements on the host) for all parts of a moment.
template <class Use>
void for_each_part(std::span<const float> moment, device::StreamRef stream, Use&& use) {
    std::vector<float> part(std::min(moment.size(), kDownloadedAtOnce));
    const device::SyncIfThrown guard(stream);
    for (std::size_t first = 0; first < moment.size(); first += part.size()) {
        const auto elements = std::span(part).first(std::min(part.size(), moment.size() - first));
        device::copy_to_host(elements.data(), moment.data() + first, elements.size_bytes(), stream);
        device::sync(stream);
        use(first, std::span<const float>(elements));
    }
}

class OnebitAdam final : public Optimizer {
public:
    OnebitAdam(const Model& model, GradientExchange& gradients, const OptimizerSettings& settings, Context& context)
        : context_(context),
          gradients_(gradients),
          local_(local_gradients(gradients)),
          settings_(settings),
          adamw_(model, gradients, settings, context),
          onebit_(onebit_of(settings)),
          table_(model.table()),
          workers_(workers_of(onebit_, context.worker->size())),
          compresses_(compresses(onebit_, context.worker->size())),
          shadows_(has_shadow(settings)),
          ranges_(tensor_ranges(model.table(), tensors_left_out(model.table(), onebit_.exclude))) {
        std::vector<kernels::DecaySegment> all = model.table().decay_segments(), each;
        for (const TensorRange& range : ranges_) {
            if (range.live) live_.push_back(range.flat);
            for (std::size_t i = range.first_segment; i < range.first_segment + range.segments; ++i) {
                each.push_back({all[i].end - range.flat.first, all[i].decays});
                if (range.live) all[i].decays = kernels::kUnchanged;
            }
        }
        const device::SyncIfThrown guard(context.stream);
        segments_of_flat_ = {std::span<const kernels::DecaySegment>(all), context.stream};
        segments_of_ranges_ = {std::span<const kernels::DecaySegment>(each), context.stream};
        if (compresses_ && onebit_.ranks_per_node > 1) {
            Communicator& all = *context.worker;
            const std::vector<int> nodes = nodes_of(all);
            require(ranks_per_node(nodes) == onebit_.ranks_per_node, "the number of ranks of a machine",
                    ranks_per_node(nodes), std::to_string(onebit_.ranks_per_node));
            for (const int node : nodes) nodes_.append(nodes_.empty() ? "" : " ").append(std::to_string(node));
            within_ = all.split(all.node());
            across_ = all.split(all.local_rank());
        } else if (compresses_) {
            make_mean({.across = context.worker.get()});
        }
        if (!mean_ && shadows_) shadow_memory_ = device::Array<float>(std::size_t(model.table().elements()));
        if (shadows_) device::fill_zero(shadow().data(), shadow().size_bytes(), context.stream);
        context.stream.sync();
    }

    void update(Model& model, std::span<kernels::StepScalars> scalars, const Rates& rates) override {
        phase_ = !is_frozen() ? "warm-up" : mean_ ? "compressed" : "frozen";
        if (!is_frozen()) {
            adamw_.update(model, scalars, rates);
            if (shadows_)
                kernels::shadow_moment({.shadow = shadow(), .grad = gradient(), .scalars = scalars,
                                        .beta = onebit_.shadow_beta2}, context_.stream);
        } else if (model.dtype() == kernels::DType::bf16) {
            update_frozen<kernels::bf16>(model, scalars);
        } else {
            update_frozen<float>(model, scalars);
        }
    }

    // The host knows the number of steps, an upper bound of the number of updates. It waits for the exact number only
    // when the freeze may be due.
    void enqueued(const OptimizerStep& step) override {
        ++steps_;
        ++max_updates_;
        if (!is_frozen()) {
            const bool automatic = onebit_.freeze_after == 0;
            const std::int64_t due = automatic ? state_.moment_sum_after + onebit_.settling_updates
                                               : onebit_.freeze_after;
            if (max_updates_ < due) return;
            max_updates_ = step.scalars().adam_step;
            if (max_updates_ < due || (automatic && !has_settled())) return;
            freeze();
            if (compresses_) make_room_for_errors();
            compress_from_now_on();
        } else if (mean_) {
            local_.stay_local(std::uint32_t(steps_), live_);
        }
    }

    JsonValue counts() const override { return json_of(state_); }

    void restore(const JsonValue& counts, std::int64_t updates, std::int64_t skipped) override {
        state_ = onebit_counts(counts, updates, "1-bit Adam");
        steps_ = updates + skipped;
        max_updates_ = updates;
        if (is_frozen() && compresses_) make_room_for_errors();
    }
    void restored() override {
        if (is_frozen()) compress_from_now_on();
    }

    std::vector<StateFile> state() const override {
        std::vector<StateFile> files = adamw_.state();
        StateFile file{.name = "onebit", .optional = true};
        if (!is_frozen() && shadows_) {
            file.quantities = {{.name = "shadow_moment", .tensors = by_parameter(table_.tensors(), {{0, shadow()}}),
                                .non_negative = true}};
            files.push_back(file);
        } else if (is_frozen() && mean_) {
            file.by = StateFile::By::all;
            file.quantities = {{.name = "worker_error",
                                .tensors = by_parameter(table_.tensors(), mean_->worker_errors()),
                                .of_each_rank = true},
                               {.name = "server_error",
                                .tensors = by_parameter(table_.tensors(), mean_->server_errors())}};
            const std::string of = "--onebit-scale " + name_of(onebit_.scale, kOnebitScales) + ", --onebit-space " +
                                   name_of(onebit_.space, kOnebitSpaces) + (within_ ? ", --onebit-hierarchical" : "");
            file.marks = {{"version", "1", StateFile::Otherwise::refused},
                          {"layout", of, StateFile::Otherwise::starts_at_0},
                          {"nodes", nodes_, StateFile::Otherwise::resharded},
                          // Until 0.3.0 shards were rounded up, and a rank lacks elements of its new one.
                          {"shards", within_ ? "rounded down" : "", StateFile::Otherwise::resharded}};
            files.push_back(file);
        }
        return files;
    }

    const char* phase() const override { return phase_; }
    const char* phase_begins() const override {
        return mean_ ? "the second moment is frozen; from now on ranks exchange momentum with 1 bit per element"
                     : "the second moment is frozen; from now on gradients stay uncompressed";
    }

private:
    void make_mean(const OnebitRanks& ranks) {
        mean_.emplace(table_, ranks, OnebitMeanSettings{.scale = onebit_.scale}, context_);
        largest_ = device::Array<float>(mean_->tiles());
    }
    bool is_frozen() const { return state_.frozen_after > 0; }
    std::span<float> shadow() const { return mean_ ? mean_->error_memory() : shadow_memory_.span(); }
    std::span<float> gradient() const { return gradients_.reduced(gradients_.buckets().owned().front()); }

    template <class T>
    void update_frozen(Model& model, std::span<kernels::StepScalars> scalars) {
        if (mean_) update_compressed<T>(model, scalars);
        for (const TensorRange& range : ranges_) {
            if (mean_ && !range.live) continue;
            const auto in = [&](auto flat) { return range.flat.of(flat); };
            kernels::adamw<T>({.parameter = in(model.parameters<T>()), .master = in(model.master_weights()),
                               .m = in(adamw_.first_moments()), .v = in(adamw_.second_moments()),
                               .grad = in(gradient()),
                               .segments = segments_of_ranges_.span().subspan(range.first_segment, range.segments),
                               .scalars = scalars, .beta1 = float(settings_.beta1), .beta2 = float(settings_.beta2),
                               .eps = float(settings_.eps), .weight_decay = float(settings_.weight_decay),
                               .rounding = rounding_of(settings_, range.flat.first), .frozen = !range.live},
                              context_.stream);
        }
    }

    template <class T>
    void update_compressed(Model& model, std::span<kernels::StepScalars> scalars) {
        const device::StreamRef stream = context_.stream;
        const bool update_space = onebit_.space == OnebitSpace::update;
        kernels::onebit_admit(mean_->finite(), scalars, stream);
        mean_->exchange({.values = gradient(), .momentum = adamw_.first_moments(),
                         .second_moment = update_space ? adamw_.second_moments() : std::span<float>(),
                         .gradient_scale = {&scalars.data()->grad_scale, 1}, .momentum_weight = float(settings_.beta1),
                         .gradient_weight = (1 - float(settings_.beta1)) * float(workers_),
                         .eps = float(settings_.eps),
                         .gradients = &local_});
        kernels::onebit_skip_non_finite(scalars, mean_->finite(), stream);
        std::size_t tile = 0;
        for (const OnebitMean::Bucket& bucket : mean_->buckets()) {
            const auto in = [&](auto flat) { return bucket.flat.of(flat); };
            kernels::onebit_adam<T>({.layout = bucket.layout, .tiles = bucket.tiles.span(),
                                     .compensated = mean_->values_of(bucket, gradient()), .error = bucket.error,
                                     .messages = bucket.messages, .replies = bucket.replies, .active = bucket.active,
                                     .one = mean_->one_scale(), .parameter = in(model.parameters<T>()),
                                     .master = in(model.master_weights()), .m = in(adamw_.first_moments()),
                                     .v = in(adamw_.second_moments()),
                                     .largest = largest_.span().subspan(tile, bucket.tiles.size()),
                                     .segments = segments_of_flat_.span(), .scalars = scalars,
                                     .eps = float(settings_.eps),
                                     .weight_decay = float(settings_.weight_decay), .update_space = update_space,
                                     .rounding = rounding_of(settings_, bucket.flat.first)}, stream);
            tile += bucket.tiles.size();
        }
        mean_->commit();
        kernels::onebit_largest(scalars, largest_.span(), stream);
    }

    // The second moment that will be frozen, and the factor that corrects its bias.
    std::span<float> settling_moment() const { return shadows_ ? shadow() : adamw_.second_moments(); }
    float correction() const {
        const double beta = double(shadows_ ? onebit_.shadow_beta2 : float(settings_.beta2));
        return float(1 / (1 - std::pow(beta, double(max_updates_))));
    }

    bool has_settled() {
        double sum = 0;
        for_each_part(settling_moment(), context_.stream, [&](std::size_t, std::span<const float> part) {
            for (const float v : part) sum += double(v);
        });
        sum *= double(correction());
        const double before = state_.moment_sum;
        state_.moment_sum = sum;
        state_.moment_sum_after = max_updates_;
        constexpr double kSettled = OnebitSettings::kSettled;
        return sum >= kSettled * before && before >= kSettled * sum && before > 0 && steps_ > onebit_.lr_warmup_steps;
    }

    void freeze() {
        for (const TensorRange& range : ranges_)
            if (!range.live)
                kernels::scale_moment(range.flat.of(adamw_.second_moments()), range.flat.of(settling_moment()),
                                      correction(), context_.stream);
        state_.frozen_after = max_updates_;
    }

    // Frees the slow second moment; all errors become 0.
    void make_room_for_errors() {
        if (!mean_) {
            context_.stream.sync();
            shadow_memory_ = {};
            make_mean({.across = across_.get(), .within = within_.get()});
        }
        mean_->zero_errors();
    }

    // Masks elements that never had a gradient, and excluded ones.
    void compress_from_now_on() {
        if (!mean_) return;
        std::vector<std::uint32_t> active(ceil_div(adamw_.second_moments().size(), 32));
        for_each_part(adamw_.second_moments(), context_.stream, [&](std::size_t first, std::span<const float> part) {
            for (std::size_t i = 0; i < part.size(); ++i)
                active[(first + i) / 32] |= std::uint32_t(part[i] != 0.0f) << (first + i) % 32;
        });
        for (const ElementRange& range : live_)
            std::ranges::fill(std::span(active).subspan(std::size_t(range.first / 32), std::size_t(range.size / 32)),
                              0u);
        mean_->set_active(active);
        local_.stay_local(std::uint32_t(steps_), live_);
    }

    Context& context_;
    GradientExchange& gradients_;
    LocalGradients& local_;
    const OptimizerSettings settings_;
    AdamW adamw_;
    const OnebitSettings onebit_;
    const ParameterTable& table_;
    const int workers_;
    const bool compresses_, shadows_;
    std::vector<TensorRange> ranges_;
    std::vector<ElementRange> live_;
    device::Array<kernels::DecaySegment> segments_of_flat_, segments_of_ranges_;
    std::unique_ptr<Communicator> within_, across_;  // for nodes as workers
    std::optional<OnebitMean> mean_;  // if gradients are compressed; with nodes as workers, only after the freeze
    device::Array<float> shadow_memory_, largest_;
    std::string nodes_;
    OnebitCounts state_;
    const char* phase_ = "warm-up";
    std::int64_t steps_ = 0;         // so far, including skipped ones
    std::int64_t max_updates_ = 0;  // upper bound of the number of updates
};

}  // namespace

std::vector<bool> tensors_left_out(const ParameterTable& table, const std::string& exclude) {
    std::vector<bool> left_out(table.tensors().size());
    if (exclude.empty()) return left_out;
    require(exclude.find('{') == std::string::npos, "--onebit-exclude", in_quotes(exclude),
            "no counts in braces, which can take all memory", "write the repetitions out");
    require(exclude.size() <= kLongestExpression, "the length of --onebit-exclude", exclude.size(),
            "at most " + std::to_string(kLongestExpression));
    regex_t expression;
    if (const int fault = regcomp(&expression, exclude.c_str(), REG_EXTENDED | REG_NOSUB); fault != 0) {
        char why[128];
        regerror(fault, &expression, why, sizeof why);
        fail("--onebit-exclude", in_quotes(exclude), "an extended regular expression", why);
    }
    const auto finds = [&](const std::string& name) {
        return regexec(&expression, name.c_str(), 0, nullptr, 0) == 0;
    };
    // Also matches the names in checkpoints.
    for (std::size_t i = 0; i < left_out.size(); ++i)
        left_out[i] = finds(table.tensors()[i].name) || finds("transformer." + table.tensors()[i].name);
    regfree(&expression);
    const auto found = std::ranges::count(left_out, true);
    if (found == 0 || found == std::ssize(left_out))
        fail("--onebit-exclude", in_quotes(exclude) + ", which matches " + (found == 0 ? "none" : "all") +
             " of the tensors", "an expression that matches some of them, such as wte.weight and h.0.ln_1.bias",
             "see the names in a checkpoint's model.safetensors; to exclude all, use --optimizer adamw");
    return left_out;
}

JsonValue json_of(const OnebitCounts& counts) {
    return JsonValue({{"frozen_after", counts.frozen_after}, {"moment_sum", counts.moment_sum},
                      {"moment_sum_after", counts.moment_sum_after}});
}

OnebitCounts onebit_counts(const JsonValue& json, std::int64_t updates, const std::string& where) {
    if (json->is_null()) return {};
    const auto valid = [&](const char* name, auto&& is_valid, const std::string& expected) {
        const nlohmann::json value = json->is_object() && json->contains(name) ? (*json)[name] : nlohmann::json();
        require(is_valid(value), where + ": " + name, excerpt(value), expected, "restore the file from a copy");
        return value;
    };
    const auto count = [&](const char* name) {
        const auto within = [&](const nlohmann::json& n) { return n.is_number_integer() && n >= 0 && n <= updates; };
        return valid(name, within, "0 to " + std::to_string(updates)).get<std::int64_t>();
    };
    const auto finite = [](const nlohmann::json& x) { return x.is_number() && std::isfinite(double(x)) && x >= 0; };
    const auto sum = valid("moment_sum", finite, "finite, 0 or more").get<double>();
    return {.frozen_after = count("frozen_after"), .moment_sum = sum, .moment_sum_after = count("moment_sum_after")};
}

std::unique_ptr<Optimizer> make_onebit_adam(const Model& model, GradientExchange& gradients,
                                            const OptimizerSettings& settings, Context& context) {
    return std::make_unique<OnebitAdam>(model, gradients, settings, context);
}

OptimizerBytes onebit_bytes(const ParameterTable& table, const Sharding& sharding, const OptimizerSettings& settings) {
    const OnebitSettings& onebit = onebit_of(settings);
    tensors_left_out(table, onebit.exclude);
    const std::size_t elements = std::size_t(table.elements());
    const std::size_t shadow = has_shadow(settings) ? elements * sizeof(float) : 0;
    // Before the freeze rank 0 copies the slow second moment, after it every rank its errors.
    OptimizerBytes bytes{"1-bit Adam's state, fp32", device::allocation_size(shadow), sharding.rank == 0 ? shadow : 0};
    if (!compresses(onebit, sharding.ranks)) return bytes;
    const int local_ranks = onebit.ranks_per_node;
    const auto mean = OnebitMean::bytes(table, workers_of(onebit, sharding.ranks), local_ranks,
                                        {.scale = onebit.scale});
    // For the freeze, on the host: the mask, and the part of a moment from which it is computed.
    const std::size_t mask = device::memory_is_host_memory()
                                 ? elements / 8 + std::min(elements, kDownloadedAtOnce) * sizeof(float) : 0;
    // With nodes as workers, the shadow moment is freed before the mean is allocated.
    bytes.bytes = sketch_bytes() + mask + mean.lists +
                  (local_ranks > 1 ? std::max(mean.device, bytes.bytes) : mean.device);
    bytes.copied = std::max(bytes.copied, mean.errors);
    return bytes;
}

}  // namespace llmc
