// onebit_mean_ranks_test.cpp - the mean over ranks alone: zeros, conservation at 1 and 4 bits, its memory, and the
// bytes that a rank sends
#include "llmc/model/onebit_mean.h"

#include "kernels/outer.h"
#include "test/support/onebit_support.h"

using namespace llmc;
using Floats = std::vector<float>;

namespace {

std::vector<std::uint32_t> bits_of(const std::vector<bool>& set) {
    std::vector<std::uint32_t> words((set.size() + 31) / 32);
    for (std::size_t i = 0; i < set.size(); ++i) words[i / 32] |= std::uint32_t(set[i]) << i % 32;
    return words;
}

// A rank after its calls.
struct Exchanged {
    std::vector<Floats> means;
    Floats worker_errors, server_errors;  // flat; server errors only where the rank is the server
    std::int64_t bytes_sent = 0, expected_bytes = 0;
    std::size_t device_bytes = 0;         // of all parts of the buckets
};

// inputs[call][rank]: flat
std::vector<Exchanged> exchange(const ParameterTable& table, int ranks, const OnebitMeanSettings& settings,
                                const std::vector<std::uint32_t>& active,
                                const std::vector<std::vector<Floats>>& inputs) {
    return test::on_ranks<Exchanged>(ranks, [&](Context& context) {
        OnebitMean mean(table, {.across = context.world.get()}, settings, context);
        mean.set_active(active);
        mean.zero_errors();
        const auto size = std::size_t(table.elements());
        device::Array<float> values(size), anchor(size);
        device::Array<double> partial(mean.tiles());
        context.stream.sync();
        Exchanged all;
        for (const auto& call : inputs) {
            values.upload(call[std::size_t(context.world->rank())], context.stream);
            anchor.zero(context.stream);
            const std::int64_t before = context.world->bytes_sent();
            mean.admit();
            mean.exchange({.values = values.span()});
            all.bytes_sent = context.world->bytes_sent() - before;
            // The outer step that moves the anchor from 0 to the mean.
            for (const OnebitMean::Bucket& bucket : mean.buckets())
                kernels::outer_apply(
                    {.layout = bucket.layout, .tiles = bucket.tiles.span(), .replies = bucket.replies,
                     .compensated = settings.errors ? bucket.flat.of(values.span()) : std::span<float>(),
                     .error = bucket.error,
                     .messages = settings.errors ? bucket.messages : std::span<std::uint32_t>(),
                     .active = bucket.active, .one = mean.one_scale(), .anchor = bucket.flat.of(anchor.span()),
                     .momentum = {}, .partial = partial.span().first(bucket.tiles.size()), .finite = mean.finite(),
                     .rate_sum = 1, .learning_rate = 1, .mu = 0}, context.stream);
            mean.commit();
            all.means.push_back(anchor.download(context.stream));
        }
        const auto flat = [&](const std::vector<StateShard>& shards) {
            Floats errors(size);
            for (const StateShard& shard : shards)
                device::copy_to_host(&errors[std::size_t(shard.first)], shard.values.data(), shard.values.size_bytes(),
                                     context.stream);
            context.stream.sync();
            return errors;
        };
        all.worker_errors = flat(mean.worker_errors());
        all.server_errors = flat(mean.server_errors());
        const auto add = [&](const auto& span) {
            all.device_bytes += round_up(span.size_bytes(), std::size_t(kernels::kTensorAlignment));
        };
        for (const OnebitMean::Bucket& bucket : mean.buckets()) {
            add(bucket.error), add(bucket.server_error), add(bucket.sums), add(bucket.messages), add(bucket.received);
            add(bucket.reply), add(bucket.replies_of_segment), add(bucket.active);
            all.expected_bytes += 2 * (ranks - 1) * 4 * bucket.layout.message_words();
        }
        all.device_bytes = device::allocation_size(all.device_bytes);
        return all;
    });
}

}  // namespace

TEST_CASE("zeros have the mean 0 and leave no errors", "[ranks][onebit]") {
    const ParameterTable table(test::kTinyModel);
    const Floats zeros(std::size_t(table.elements()));
    const auto all = bits_of(std::vector<bool>(zeros.size(), true));
    for (const int bits : {1, 4}) {
        const auto got = exchange(table, 2, {.bits = bits}, all, {{zeros, zeros}});
        for (const Floats& values : {got[1].means[0], got[1].worker_errors, got[1].server_errors})
            CHECK(std::ranges::all_of(values, [](float x) { return x == 0; }));
    }
}

TEST_CASE("means at 1 and 4 bits are the same on all ranks and lose nothing; memory and traffic are as planned",
          "[ranks][onebit]") {
    const int ranks = GENERATE(1, 2, 3);
    const auto settings = GENERATE(OnebitMeanSettings{.bits = 1}, OnebitMeanSettings{.bits = 4},
                                   OnebitMeanSettings{.bits = 4, .errors = false},
                                   OnebitMeanSettings{.scale = OnebitScale::bucket, .bits = 4},
                                   OnebitMeanSettings{.scale = OnebitScale::block, .bits = 4, .errors = false});
    CAPTURE(ranks, int(settings.scale), settings.bits, settings.errors);
    const ParameterTable table(test::kTinyModel);
    const auto size = std::size_t(table.elements());
    std::vector<bool> kept(size);
    for (std::size_t i = 0; i < size; ++i) kept[i] = i % 5 != 2;
    std::vector<std::vector<Floats>> inputs(4);
    std::vector<double> wanted(size), scale(size);
    for (std::size_t call = 0; call < inputs.size(); ++call)
        for (int rank = 0; rank < ranks; ++rank) {
            inputs[call].push_back(test::normal<float>(size, unsigned(8 * call) + unsigned(rank)));
            for (std::size_t i = 0; i < size; ++i) {
                wanted[i] += double(inputs[call].back()[i]) / ranks;
                scale[i] += std::fabs(double(inputs[call].back()[i])) / ranks;
            }
        }
    const auto got = exchange(table, ranks, settings, bits_of(kept), inputs);
    std::vector<double> sum(size);
    double lost = 0, whole = 0;
    for (const Exchanged& rank : got) {
        CHECK(rank.bytes_sent == rank.expected_bytes);
        CHECK(rank.device_bytes == OnebitMean::bytes(table, ranks, 1, settings).device);
        CHECK(test::same_bits(rank.means.back(), got[0].means.back()));
        for (std::size_t i = 0; i < size; ++i)
            sum[i] += double(rank.worker_errors[i]) / ranks + double(rank.server_errors[i]);
    }
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < size; ++i) {
        for (const Floats& mean : got[0].means) sum[i] += double(mean[i]);
        if (!kept[i]) wrong += sum[i] != 0;
        else if (settings.errors) wrong += std::fabs(sum[i] - wanted[i]) > 1e-5 * scale[i];
        else lost += std::pow(sum[i] - wanted[i], 2), whole += wanted[i] * wanted[i];
    }
    CHECK(wrong == 0);
    CHECK(lost <= 0.03 * whole);  // 1.3 % of workers and servers each
}
