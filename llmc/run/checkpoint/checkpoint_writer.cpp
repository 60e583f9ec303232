// checkpoint_writer.cpp - copies made between two steps, written by threads, published as one checkpoint
#include "llmc/run/checkpoint/checkpoint_writer.h"

#include <omp.h>
#include <unistd.h>

#include <iostream>

#include "llmc/base/clock.h"
#include "llmc/base/staged_file.h"
#include "llmc/base/standard_streams.h"
#include "llmc/model/moment_files.h"
#include "llmc/model/onebit_adam.h"
#include "llmc/model/onebit_files.h"
#include "llmc/weights/checkpoint.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kOtherBytes = 256 << 10;  // small files, headers, and some lines of the log

bool writes_model(const Sharding& sharding) { return sharding.rank == 0; }
bool writes_moments(const Sharding& sharding) { return sharding.shards_state() || sharding.rank == 0; }

// Checks first, because a full disk would also stop the log: fp32 weights, two Adam moments, and the 1-bit Adam state
// of every rank.
void require_room_on_disk(const fs::path& output_dir, const ParameterTable& table, std::int64_t onebit_elements,
                          const TokenizerFiles& tokenizer) {
    auto bytes = std::uintmax_t(table.elements() * 3 + onebit_elements) * sizeof(float) + kOtherBytes;
    for (const auto& [name, contents] : tokenizer) bytes += contents.size();
    std::error_code unknown;
    const fs::space_info disk = fs::space(output_dir, unknown);
    if (!unknown && disk.available < bytes)
        fail("the free disk space of " + output_dir.string() + " in bytes", disk.available,
             "at least " + std::to_string(bytes), "free disk space", Blame::runtime);
}

}  // namespace

CheckpointWriter::CheckpointWriter(const CheckpointSettings& settings, const Model& model, const Optimizer& optimizer,
                                   const GradientBuckets& buckets, Context& context, Report& report)
    : settings_(settings),
      writes_model_(writes_model(settings.sharding)),
      writes_moments_(writes_moments(settings.sharding)),
      model_(model),
      optimizer_(optimizer),
      buckets_(buckets),
      context_(context),
      report_(report),
      writing_([this] { write(); }) {}

std::size_t CheckpointWriter::copy_bytes(const ParameterTable& table, const Sharding& sharding,
                                         const std::optional<OnebitSettings>& onebit) {
    return (writes_model(sharding) ? std::size_t(table.elements()) * sizeof(float) : 0) +
           (onebit ? onebit_bytes(table, sharding, *onebit) : 0) +
           (writes_moments(sharding) ? optimizer_bytes(table, sharding) : 0);
}

void CheckpointWriter::allocate(std::size_t onebit) {
    const std::size_t weights = writes_model_ ? std::size_t(model_.table().elements()) : 0;
    const std::size_t moments = writes_moments_ ? std::size_t(buckets_.owned_elements()) : 0;
    const std::size_t elements = weights + 2 * moments + onebit;
    if (elements > memory_elements_) {
        memory_elements_ = 0;
        memory_ = device::PinnedMemory();  // frees the old memory first
        memory_ = device::PinnedMemory(elements * sizeof(float));
        memory_elements_ = elements;
    }
    const std::span<float> all(reinterpret_cast<float*>(memory_.data()), elements);
    master_weights_ = all.first(weights);
    first_moments_ = all.subspan(weights, moments);
    second_moments_ = all.subspan(weights + moments, moments);
    onebit_ = all.last(onebit);
}

void CheckpointWriter::begin(TrainerState state) {
    const double began = seconds_now();
    if (begun_) end(false);
    onebit_state_ = optimizer_.onebit_state();
    state.onebit_files = onebit_file_count(onebit_state_, settings_.sharding.ranks);
    const bool writes_onebit = llmc::writes_onebit(onebit_state_, settings_.sharding.rank);
    state.moment_files = settings_.sharding.shards_state() ? settings_.sharding.ranks : 1;
    // A folder at the old path may be another run's.
    const std::int64_t lost =
        context_.communicator->host_reduce(report_.folder_is_lost() ? getpid() : 0, HostReduction::max);
    fs::path output_dir = settings_.output_dir;
    if (lost != 0) output_dir += ".process-" + std::to_string(lost);
    const fs::path folder = step_folder(output_dir, state.step);
    begun_.emplace(Begun{.state = std::move(state), .folder = folder, .beside = lost != 0});
    try {
        together(*context_.communicator, [&] {
            allocate(writes_onebit ? std::size_t(onebit_state_.elements) : 0);
            if (!writes_model_) return;
            staged_ = std::make_unique<StagedFolder>(begun_->folder);
            require_room_on_disk(output_dir, model_.table(),
                                 onebit_state_.elements * begun_->state.onebit_files, settings_.tokenizer);
        });
    } catch (const SharedError& error) {
        begun_->failure = error.what();
        staged_.reset();
        return;
    }
    if (writes_moments_) optimizer_.copy_moments_to_host(first_moments_, second_moments_);
    if (writes_onebit) optimizer_.copy_onebit_to_host(onebit_);
    model_.copy_master_weights_to_host(master_weights_);  // waits
    begun_->waited_seconds = seconds_now() - began;
    writing_.start();
}

void CheckpointWriter::write() {
    omp_set_num_threads(1);  // for loops of this thread: training uses the cores
    const fs::path folder = StagedFolder::path_of(begun_->folder);
    written_.clear();
    const std::string moments = moment_file_name(settings_.sharding.rank, begun_->state.moment_files);
    const std::string onebit = onebit_file_name(settings_.sharding.rank, begun_->state.onebit_files);
    try {
        if (!onebit_.empty())
            written_[onebit] = write_onebit(folder / onebit, onebit_state_, model_.table().elements(), onebit_);
        if (writes_moments_)
            written_[moments] = write_moments(folder / moments, buckets_.owned(), model_.table().elements(),
                                              first_moments_, second_moments_);
        if (writes_model_) {
            written_["model.safetensors"] = write_model(
                folder, model_.table(), from_flat(model_.table(), master_weights_), settings_.end_of_text);
            write_trainer_state(folder, begun_->state);
            for (const auto& [name, contents] : settings_.tokenizer) {
                write_whole(folder / name, contents);
                written_[name] = fingerprint_of_file(folder / name);
            }
            for (const char* const name : {"config.json", "trainer_state.json"})
                written_[name] = fingerprint_of_file(folder / name);
        }
    } catch (...) {
        std::error_code none;  // free the disk space at once
        fs::remove(folder / onebit, none);
        fs::remove(folder / moments, none);
        if (writes_model_) fs::remove(folder / "model.safetensors", none);
        throw;
    }
}

void CheckpointWriter::end(bool last) {
    if (!begun_) return;
    Communicator& ranks = *context_.communicator;
    const std::int64_t step = begun_->state.step;
    try {
        if (!begun_->failure.empty()) throw SharedError(begun_->failure, Blame::runtime);
        together(ranks, [&] { writing_.wait(); });
        Manifest all;
        for (const std::string& of_rank : ranks.host_gather(text_of(written_))) all.merge(manifest_of(of_rank));
        on_first_rank(ranks, [&] { publish(all); });
    } catch (const SharedError& error) {  // but not if ranks lost their connection
        staged_.reset();
        begun_.reset();
        const std::string why = "no checkpoint of step " + std::to_string(step) + ": " + error.what();
        if (last) throw SharedError(why, Blame::runtime);
        on_first_rank(ranks, [&] { report_.checkpoint_failed(step, why); });
        return;
    }
    on_first_rank(ranks, [&] {
        report_.checkpoint(step, begun_->folder, begun_->waited_seconds);
        delete_older();
    });
    begun_.reset();
}

void CheckpointWriter::publish(const Manifest& all) {
    for (const auto& [name, file] : all) {
        std::error_code fault;
        require(std::int64_t(fs::file_size(staged_->path() / name, fault)) == file.bytes && !fault, name,
                "different from what another rank wrote", "the same --output-dir folder on every host",
                "put it on a file system that all hosts share");
    }
    write_manifest(staged_->path(), all);
    staged_->commit();
    staged_.reset();
}

// Renames a folder to a hidden name before deleting its files, so that a folder with a final name is always complete.
void CheckpointWriter::delete_older() const {
    if (settings_.keep_checkpoints == 0 || begun_->beside) return;
    std::int64_t newer = 0;
    const auto folders = step_folders(settings_.output_dir);
    for (auto entry = folders.rbegin(); entry != folders.rend(); ++entry) {
        const auto& [step, folder] = *entry;
        if (step > begun_->state.step || newer++ < settings_.keep_checkpoints) continue;
        if (settings_.major_every > 0 && step % settings_.major_every == 0) continue;
        if (!fs::exists(folder / kManifestName)) continue;  // not a checkpoint of this program
        const fs::path hidden = StagedFolder::path_of(folder);
        std::error_code fault;
        fs::remove_all(hidden, fault);
        if (!fault) fs::rename(folder, hidden, fault);
        if (!fault) fs::remove_all(hidden, fault);
        if (fault)
            print_stderr("note: the old checkpoint " + folder.string() + " cannot be deleted: " + fault.message());
    }
}

namespace {

// A checkpoint that matches its manifest but cannot be read is a failure at run time, not an input error.
template <class Read>
auto as_runtime_error(Communicator& communicator, Read&& read) {
    return together(communicator, [&] {
        try {
            return read();
        } catch (const Error& error) {
            throw Error(error.what(), Blame::runtime);
        }
    });
}

}  // namespace

void load_moments(Optimizer& optimizer, const fs::path& folder, const TrainerState& state, const ParameterTable& table,
                  Communicator& communicator) {
    as_runtime_error(communicator, [&] {
        const MomentFiles moments(folder, state.moment_files, table.elements());
        optimizer.load(state.optimizer, [&](std::int64_t first, std::span<float> first_moments,
                                            std::span<float> second_moments) {
            moments.read(first, first_moments, second_moments);
        });
    });
    const std::string note = as_runtime_error(communicator, [&] {
        const OnebitErrors read = read_onebit(optimizer.onebit_state(), table.elements(), folder, state.onebit_files,
                                              communicator.rank(), communicator.size());
        if (!read.values.empty()) optimizer.load_onebit(read.values);
        return read.note;
    });
    if (!note.empty() && communicator.rank() == 0) print_stderr("note: " + note);
}

}  // namespace llmc
