// tuning.cpp - which rank reads, times and writes
#include "llmc/model/tuning.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "llmc/comm/agreement.h"

namespace llmc {

using nlohmann::json;

constexpr const char* kSpeeds = "speed";  // in the place of a library

void add_options(OptionList& list, AlgorithmSettings& s) {
    list.group("Machine");
    list.entry("attention", s.attention, "attention kernels on a GPU; auto: the fastest that is available (see --tune)",
        kernels::kAttentionMethods);
    list.entry("bf16-arithmetic", s.bf16_arithmetic,
        "bf16 matrix products on a CPU; native: bf16 instructions; widen: in fp32; measure: the faster of the two "
        "(see --tune)",
        kBf16Arithmetics);
    list.entry("tune", s.tune,
        "autotuning of algorithms; off: use the library's defaults; auto: use the results in --tune-file, and time "
        "and add what is missing there; again: time everything again; with mpirun write --tune=again",
        kTunes);
    list.entry("tune-file", s.file,
        "file for autotuning results; empty: $XDG_CACHE_HOME/train_gpt2/choices.json, or in ~/.cache",
        OnRanks::of_the_host);
    list.entry("deterministic", s.deterministic, "on a GPU: use only deterministic kernels, even if others are faster");
}

Tuning::Tuning(const AlgorithmSettings& settings, bool times, Context& context)
    : tune_(settings.tune),
      context_(context),
      file_(settings.file.empty() ? default_tune_file() : settings.file),
      times_(tune_ != Tune::off && times) {
    context_.tuned->cache_bytes = context_.device.cache;
    context_.tuned->load_seconds = device::is_gpu() ? 1 : 0;
    if (tune_ == Tune::off) return;
    Communicator& ranks = *context_.world;
    json mine = {{"kind", context_.device.name + ", " + context_.matmul.library() + ", " +
                              context_.attention.library()}};
    if (ranks.rank() == 0) {
        const TuneFile file = file_.empty() ? TuneFile() : read_tune_file(file_);
        if (file_.empty())
            notes_.push_back("autotuning results are not stored: neither XDG_CACHE_HOME nor HOME is set; set "
                             "--tune-file");
        if (!file.fault.empty())
            notes_.push_back("autotuning results are neither read from " + file_ + " nor stored there: " + file.fault +
                             "; remove it, or set another --tune-file");
        may_write_ = !file_.empty() && file.fault.empty();
        mine["choices"] = to_json(tune_ == Tune::again ? TunedByDevice() : file.tuned);
    }
    const std::vector<json> all = gather_json(ranks, mine);
    const auto same = [&](const json& rank) { return rank["kind"] == all[std::size_t(ranks.rank())]["kind"]; };
    is_first_of_kind_ = std::ranges::find_if(all, same) - all.begin() == ranks.rank();
    context_.tuned->known = tuned_from_json(all[0]["choices"])[context_.device.name];
}

void Tuning::share() {
    const json mine = {{context_.device.name, to_json(context_.tuned->timed())}};
    for (const json& timed : gather_json(*context_.world, mine))
        for (const auto& [device, table] : tuned_from_json(timed))
            for (const auto& [library, tuned] : table)
                for (const auto& [problem, choice] : tuned) {
                    new_results_[device][library][problem] = choice;
                    if (device == context_.device.name) context_.tuned->known[library][problem] = choice;
                }
}

void Tuning::report_notes() {
    const std::vector<std::string>& notes = context_.tuned->notes();
    if (notes.size() == noted_) return;
    const std::size_t more = notes.size() - noted_ - 1;
    notes_.push_back("not autotuned: " + notes[noted_] +
                     (more > 0 ? "; the same for " + std::to_string(more) + " more" : std::string()));
    noted_ = notes.size();
}

std::optional<double> Tuning::speed(const std::string& what) const {
    const auto library = context_.tuned->known.find(kSpeeds);
    if (library == context_.tuned->known.end()) return {};
    const auto found = library->second.find(what);
    return found == library->second.end() ? std::nullopt : std::optional(found->second.seconds);
}

void Tuning::keep_speed(const std::string& what, double seconds) {
    new_results_[context_.device.name][kSpeeds][what] = {.taken = "", .why = "", .seconds = seconds};
}

void Tuning::save() {
    if (new_results_.empty() || !may_write_) return;
    try {
        add_to_tune_file(file_, new_results_);
    } catch (const Error& error) {
        notes_.push_back("the autotuning results of this run are not stored in " + file_ + ": " + error.what() +
                         "; the next run times again");
    }
}

std::string Tuning::describe() const {
    if (tune_ == Tune::off) return "";
    const std::size_t used = count(context_.tuned->used()), timed = count(context_.tuned->timed());
    if (used == 0) return "";
    std::string text = "autotuned algorithms: ";
    if (timed > 0) text += std::to_string(timed) + " timed now";
    if (used > timed) {
        if (timed > 0) text += ", ";
        text += std::to_string(used - timed) + " from " + file_;
    } else if (notes_.empty()) text += ", stored in " + file_;
    return text;
}

nlohmann::ordered_json Tuning::fields() const {
    using Json = nlohmann::ordered_json;
    return {{"file", tune_ == Tune::off || file_.empty() ? Json() : Json(file_)},
            {"timed", count(context_.tuned->timed())},
            {"taken", Json(to_json(context_.tuned->used()))}};
}

}  // namespace llmc
