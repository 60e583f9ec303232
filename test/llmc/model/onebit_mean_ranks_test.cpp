// onebit_mean_ranks_test.cpp - the mean over ranks alone: the vectors of the specification, zeros, conservation at 1
// and 4 bits, its memory, and the bytes that a rank sends
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

TEST_CASE("the mean of two ranks matches the specification of 1-bit Adam", "[ranks][onebit]") {
    const ParameterTable table(test::kTinyModel);
    std::vector<std::size_t> places;  // of the 16 elements: the first eight of both chunks of a bucket
    test::on_ranks<int>(2, [&](Context& context) {
        const OnebitMean mean(table, {.across = context.world.get()}, {}, context);
        if (context.world->rank() > 0) return 0;
        const OnebitMean::Bucket& bucket = mean.buckets()[0];
        for (std::int64_t i = 0; i < 16; ++i)
            places.push_back(std::size_t(bucket.flat.first + i / 8 * bucket.layout.chunk + i % 8));
        return 0;
    });
    // Calls 1 and 2 of ranks 0 and 1.
    const std::vector<std::vector<Floats>> specified{
        {{2, -1.5f, 1, 0, .5f, -.5f, -1, 1.5f, .5f, 1, -0.0f, -1.5f, .5f, -1, 0, -.5f},
         {.5f, .25f, -.5f, -.25f, 1, .5f, -.5f, -.25f, .25f, .75f, 0, -.75f, .5f, -.25f, .5f, -.25f}},
        {{-1, .5f, .25f, 1, -.5f, .75f, 0, -.25f, 1.5f, -.5f, .25f, .5f, -2, .25f, -1, .125f},
         {.25f, .5f, -.5f, .75f, -.25f, .25f, 1, -.5f, .25f, -1.25f, .5f, .25f, 0, .5f, -.25f, .125f}}};
    struct Want {
        Floats mean;
        std::vector<Floats> errors, served;  // of both ranks
    };
    constexpr float b0 = .659650147f, b1 = .657208025f;
    const std::vector<Want> wanted{
        {{.5f, -.5f, .5f, .5f, .5f, -.5f, -.5f, .5f, .75f, .75f, .75f, -.75f, .75f, -.75f, .75f, -.75f},
         {{1, -.5f, 0, -1, -.5f, .5f, 0, .5f, -.5f, 0, -1, -.5f, -.5f, 0, -1, .5f},
          {0, -.25f, 0, .25f, .5f, 0, 0, .25f, -.25f, .25f, -.5f, -.25f, 0, .25f, 0, .25f}},
         {{.25f, .25f, -.25f, -.25f, .25f, .25f, -.25f, -.25f}, Floats(8)}},
        {{b0, b0, -b0, b0, b0, b0, b0, -b0, b1, -b1, -b1, b1, -b1, b1, -b1, b1},
         {{-.974779606f, -.974779606f, -.724779606f, -.974779606f, -.0252203941f, .275220394f, -.974779606f,
           -.724779606f, .0252203941f, .474779606f, .224779606f, -.974779606f, -1.52522039f, -.724779606f,
           -1.02522039f, -.349779606f},
          {-.270103633f, -.270103633f, .0201036334f, .479896367f, -.270103633f, -.270103633f, .479896367f,
           .270103633f, -.520103633f, -.479896367f, -.520103633f, -.520103633f, -.520103633f, .229896367f, .270103633f,
           -.145103633f}},
         {{.337791502f, .337791502f, .636988163f, -.162208498f, -.636988163f, .337791502f, -.162208498f, .636988163f},
          {.090233624f, -.090233624f, .429870039f, .090233624f, .429870039f, .090233624f, -.090233624f,
           .090233624f}}}};
    std::vector<bool> kept(std::size_t(table.elements()));
    std::vector<std::vector<Floats>> inputs(2, std::vector<Floats>(2, Floats(kept.size(), 3.0f)));
    for (std::size_t i = 0; i < 16; ++i) {
        kept[places[i]] = true;
        for (std::size_t call = 0; call < 2; ++call)
            for (std::size_t rank = 0; rank < 2; ++rank) inputs[call][rank][places[i]] = specified[call][rank][i];
    }
    for (const std::size_t calls : {1, 2}) {
        const auto got = exchange(table, 2, {.scale = OnebitScale::bucket}, bits_of(kept),
                                  {inputs.begin(), inputs.begin() + std::ptrdiff_t(calls)});
        const Want& want = wanted[calls - 1];
        for (std::size_t rank = 0; rank < 2; ++rank)
            for (std::size_t i = 0; i < 16; ++i) {
                CAPTURE(calls, rank, i);
                const auto is = [&](const Floats& flat, float value) {
                    return std::fabs(double(flat[places[i]]) - double(value)) <= 3e-7;
                };
                CHECK(is(got[rank].means.back(), want.mean[i]));
                CHECK(is(got[rank].worker_errors, want.errors[rank][i]));
                if (i / 8 == rank) CHECK(is(got[rank].server_errors, want.served[rank][i % 8]));
            }
    }
}

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
