// initial_model.h - what a model needs between its making and its first step: weights, and the choice of the matrix
// library's algorithms
#pragma once
#include "llmc/run/plan.h"

namespace llmc {

// Loads the same weights on every rank: those of plan.start, whose file is then closed, or random ones from the seed.
// Throws SharedError where ranks have other ones.
void load_initial_weights(Model& model, Plan& plan, std::uint64_t seed, Communicator& ranks);

// Products on the model's own tensors, before real data are there and before there are gradients.
void choose_products(Model& model, const Plan& plan, Context& context);

}  // namespace llmc
