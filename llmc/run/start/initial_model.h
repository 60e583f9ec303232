// initial_model.h - what a model needs before its first step: weights, and autotuned matrix products
#pragma once
#include "llmc/run/start/run_plan.h"

namespace llmc {

// Loads the same weights on every rank: those of `start`, whose file is then closed, or new ones.
// Throws SharedError if the weights differ between ranks.
void load_initial_weights(Model& model, StartingPoint start, const ParameterTable& table, const Options& options,
                          Communicator& ranks);

// Times matrix products on the model's own tensors, before there are data or gradients.
void choose_products(Model& model, const RunPlan& plan, Context& context);

}  // namespace llmc
