// initial_model.cpp - weights into a model, and its products on made-up tokens
#include "llmc/run/initial_model.h"

#include "llmc/base/fingerprint.h"
#include "llmc/comm/agreement.h"
#include "llmc/model/batch_upload.h"

namespace llmc {

void load_initial_weights(Model& model, Plan& plan, std::uint64_t seed, Communicator& ranks) {
    const auto weights = together(ranks, [&] { return initial_weights(plan.start, plan.table, seed); });
    plan.start.checkpoint.reset();
    const std::string bits = ranks.size() > 1 ? fingerprint(std::as_bytes(std::span(weights))) : "";
    require_alike(ranks, {{"initial weights with the fingerprint", bits}}, "give all ranks the same --init");
    model.load(weights);
}

void choose_products(Model& model, const Plan& plan, Context& context) {
    const std::size_t rows = plan.setup.shape.rows();
    std::vector<int> tokens(rows);
    for (std::size_t i = 0; i < rows; ++i) tokens[i] = int(i % std::size_t(plan.start.config.vocabulary));
    BatchUpload upload(plan.setup.shape, plan.start.config.vocabulary, context);
    model.choose_products(upload.upload(tokens, tokens, plan.setup.shape, Purpose::evaluation), plan.micro_batches > 1);
}

}  // namespace llmc
