// choice.h - the values of flags that are auto: what a run of this length on this text should use, as measured in
// dev/results/2026-11-28-auto.md
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llmc/run/options/run_settings.h"
#include "llmc/run/start/speed.h"

namespace llmc {

// What a choice depends on, beside the flags; the same on every rank.
struct Facts {
    double tokens = INFINITY;       // of one pass over the training data; infinite: no data
    double bytes_per_token = 4.5;   // of text
    double tokens_per_document = INFINITY;
    double bigram_loss = 1.5, zstd_loss = 1.5;  // nats per byte of held-out text after 300,000 tokens
    double val_tokens = 0;          // of the validation data; 0: none
    int vocabulary = 50257;
    int ranks = 1;
    bool gpu = false;
    double memory = 0;              // bytes for each rank; 0: not known
    Speed speed{};
    std::optional<ModelConfig> model{};  // of --init, if that is given
    bool is_trained = false;        // its weights are those of a checkpoint
    bool is_of_muon = false;        // and of a run with that optimizer
    std::optional<bool> document_mask{};  // and of a run with or without it; empty: not known
    bool mask_document_start = false;     // and of a run with it
};

struct ChosenValue {
    std::string flag;    // long name without dashes
    std::string value;   // as on a command line
    std::string reason;  // empty: as its help says
};

struct Chosen {
    std::vector<ChosenValue> values;  // of every flag that is auto, in the order of the report
    ModelConfig model;
    double tokens = 0;                       // of the run
    bool is_assumed = false;                 // as nothing says how many
    std::optional<double> seconds{};         // of its training; empty: the speed is not known
    std::optional<double> loss{};            // expected, in nats per byte; empty: no data, or a trained model
    // Of the next larger and the next smaller size, relative to it.
    std::optional<double> larger{}, smaller{};
};

// --optimizer, if `settings` leaves it to the run: the speed depends on it.
std::optional<ChosenValue> choose_optimizer(const Facts& facts, const RunSettings& settings);
// The values of all other flags that `settings` leaves to the run. Pure arithmetic. Throws Error for a budget or a text
// that is too small for any model.
Chosen choose(const Facts& facts, const RunSettings& settings);

// Of a run of these minutes, without validations and what else is not training.
double training_seconds(double minutes);

// Expected validation loss, in nats per byte, after training on `tokens`.
double expected_loss(const Facts& facts, const ModelConfig& model, double tokens);

}  // namespace llmc
