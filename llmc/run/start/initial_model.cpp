// initial_model.cpp - loads weights into a model, and autotunes its matmuls with dummy tokens
#include "llmc/run/start/initial_model.h"

#include "llmc/base/fingerprint.h"
#include "llmc/comm/agreement.h"
#include "llmc/model/batch_upload.h"

namespace llmc {

void load_initial_weights(Model& model, StartingPoint start, const ParameterTable& table, const Options& options,
                          Communicator& ranks) {
    const auto weights = together(ranks, [&] { return initial_weights(start, table, options); });
    start.checkpoint.reset();
    const std::string bits = ranks.size() > 1 ? fingerprint(std::as_bytes(std::span(weights))) : "";
    require_same(ranks, {{"initial weights with the fingerprint", bits}}, "use the same --init on all ranks");
    model.load(weights);
}

void choose_products(Model& model, const RunPlan& plan, Context& context) {
    const int vocabulary = plan.setup.config.vocabulary;
    std::vector<int> tokens(plan.setup.shape.rows());
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = int(i % std::size_t(vocabulary));
    BatchUpload upload(plan.setup.shape, vocabulary, context);
    model.choose_products(upload.upload(tokens, tokens, plan.setup.shape, Purpose::evaluation), plan.micro_batches > 1);
}

}  // namespace llmc
