// hellaswag.cpp - the loss of every ending, gathered from all ranks, and the predictions that follow
#include "llmc/run/evaluation/hellaswag.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/device/range.h"
#include "llmc/base/clock.h"
#include "llmc/base/terminal.h"

namespace llmc {
namespace {

bool finds(std::span<const double> scores, int right) {
    if (!std::ranges::all_of(scores, [](double score) { return std::isfinite(score); })) return false;
    return std::ranges::min_element(scores) - scores.begin() == right;
}

}  // namespace

double HellaSwagScore::acc_norm_error() const { return std::sqrt(acc_norm() * (1 - acc_norm()) / double(examples)); }

HellaSwagScore score_of(const HellaSwagFile& file, std::span<const double> nats) {
    HellaSwagScore score{.examples = std::int64_t(file.examples().size())};
    for (std::size_t i = 0; i < file.examples().size(); ++i) {
        const HellaSwagExample& example = file.examples()[i];
        std::array<double, 4> sums, means;
        for (std::size_t e = 0; e < 4; ++e) {
            const auto equal = [&](const auto& other) { return std::ranges::equal(other, example.endings[e]); };
            const auto first = std::ranges::find_if(example.endings, equal) - example.endings.begin();
            sums[e] = nats[4 * i + std::size_t(first)];
            means[e] = sums[e] / double(example.endings[e].size());
        }
        score.right += finds(sums, example.right);
        score.right_norm += finds(means, example.right);
    }
    return score;
}

// Rank j mod ranks scores batch j.
HellaSwagScore hellaswag_score(const HellaSwagBatches& batches, Model& model, BatchUpload& upload, Context& context,
                               const ReceivedSignal& received_signal, const TimeIsUp& time_is_up) {
    const device::Range range("hellaswag");
    const double began = seconds_now();
    Communicator& ranks = *context.world;
    model.wait_for_parameters();  // also on ranks without a batch
    SignalPoll poll(ranks, received_signal);
    ProgressLine progress(ranks.rank() == 0, /*seconds_elsewhere=*/30);
    std::vector<double> mine;  // nats of the rows of this rank's batches
    for (std::int64_t first = 0; first < batches.size(); first += ranks.size()) {
        progress.show_share("HellaSwag", double(first) / double(batches.size()));
        const auto answer = poll.before_batch(first / ranks.size(), time_is_up());
        if (answer.signal != 0 || answer.stops) return {.signal = answer.signal, .out_of_time = answer.stops};
        if (first + ranks.rank() >= batches.size()) continue;
        const auto batch = batches[first + ranks.rank()];
        const MicroBatchShape shape{int(batch.rows.size()), batch.seq_len};
        const std::vector<float> losses =
            model.token_losses(upload.upload(batch.inputs, batch.targets, shape, Purpose::evaluation));
        for (auto loss = losses.begin(); loss != losses.end(); loss += batch.seq_len)
            mine.push_back(std::accumulate(loss, loss + batch.seq_len, 0.0));
    }
    const auto of_ranks = ranks.host_gather({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof mine[0]});
    std::vector<double> nats(std::size_t(batches.rows()));
    std::vector<std::size_t> read(of_ranks.size());  // bytes read of each rank
    for (std::int64_t j = 0; j < batches.size(); ++j) {
        const auto rank = std::size_t(j % ranks.size());
        for (const std::int64_t row : batches.rows_of(j)) {
            std::memcpy(&nats[std::size_t(row)], of_ranks[rank].data() + read[rank], sizeof(double));
            read[rank] += sizeof(double);
        }
    }
    HellaSwagScore score = score_of(batches.file(), nats);
    score.seconds = seconds_now() - began;
    return score;
}

void add_options(OptionList& list, HellaSwagSettings& s) {
    list.group("Evaluation and sampling");
    list.entry("hellaswag", s.file,
        "HellaSwag examples to score the model on: a file made by dev/data/prepare hellaswag, or llm.c's "
        "hellaswag_val.bin",
        OnRanks::of_the_host);
    list.entry("hellaswag-every", s.every,
        "steps between HellaSwag scores; also after the last step, unless --max-minutes ended the run",
        Whole{1, kMany});
}

}  // namespace llmc
