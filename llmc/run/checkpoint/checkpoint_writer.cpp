// checkpoint_writer.cpp - copies made between two steps, written by threads, published as one checkpoint
#include "llmc/run/checkpoint/checkpoint_writer.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "llmc/base/output_file.h"
#include "llmc/base/standard_streams.h"
#include "llmc/model/outer_steps.h"
#include "llmc/model/state_files.h"
#include "llmc/weights/saved_model.h"
#include "llmc/weights/step_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kOtherBytes = 256 << 10;  // small files, the model's header, and some lines of the log
constexpr std::int64_t kHeaderElements = 64;       // as much as the header of a state file has of a shard

// For fp32 weights and the optimizer state of all ranks. Called before anything is written, because a full disk would
// also stop the log.
void require_room_on_disk(const fs::path& output_dir, const ParameterTable& table, std::int64_t state_elements,
                          const TokenizerFiles& tokenizer) {
    auto bytes = std::uintmax_t(table.elements() + state_elements) * sizeof(float) + kOtherBytes;
    for (const auto& [name, contents] : tokenizer) bytes += contents.size();
    std::error_code unknown;
    const fs::space_info disk = fs::space(output_dir, unknown);
    if (!unknown && disk.available < bytes)
        fail("the free disk space of " + output_dir.string() + " in bytes", disk.available,
             "at least " + std::to_string(bytes), "make room on the disk", Blame::runtime);
}

// Whether --major-every keeps the checkpoint: that of a multiple or, because checkpoints wait for the end of a round of
// local steps, of the end of the round of a multiple.
bool is_major(std::int64_t step, const fs::path& folder, std::int64_t every) {
    if (every == 0) return false;
    if (step % every == 0) return true;
    if (step < every) return false;
    try {
        const TrainerState saved = read_trainer_state(folder);
        const OuterCounts outer = outer_counts(saved.optimizer.own, step, folder.string());
        return outer.rounds > 0 && outer.round_began == step &&
               step % every < outer_settings_in(saved.run.options, folder.string()).every;
    } catch (const std::exception&) {  // damaged
        return false;
    }
}

}  // namespace

void add_options(OptionList& list, CheckpointSettings& s) {
    list.group("Data and model");
    list.entry("o,output-dir", s.output_dir, "folder for log.jsonl and checkpoints; empty: nothing is written",
        OnResume::of_one_start);
    list.group("Checkpoint");
    list.entry("n,checkpoint-every", s.every, "steps between checkpoints; 0: only one, at the end of the run",
        Whole{0, kMany});
    list.entry("checkpoint-minutes", s.minutes,
        "minutes between checkpoints, in addition to --checkpoint-every; 0: off", Real{0, 1e7});
    list.entry("keep-checkpoints", s.keep,
        "keep the newest N checkpoints; older ones are deleted when a newer one is complete; 0: keep all",
        Whole{0, kMany}, ByRun{});
    list.entry("major-every", s.major_every,
        "never delete checkpoints whose step is a multiple of N, or that waited for the end of its round; 0: off",
        Whole{0, kMany});
    list.entry("keep-best", s.keep_best,
        "save a checkpoint after every validation with a new lowest loss, link the folder best to it, and delete the "
        "one before unless --keep-checkpoints or --major-every keeps it; needs -o and -j, and no --keep-checkpoints 0",
        ByRun{});
    list.entry("y,resume", s.resume,
        "resume training from a checkpoint; auto: the newest complete one in --output-dir, or start a new run if "
        "there is none; or the folder of a checkpoint; or never",
        OnResume::of_one_start);
    list.entry("allow-new-data", s.allow_new_data,
        "with --resume: allow training shards that differ from the checkpoint's; they are read from their start",
        OnResume::of_one_start);
    list.check([&s] {
        require(!s.keep_best || s.keep > 0, "--keep-best", "set with --keep-checkpoints 0, which keeps all",
                "--keep-checkpoints above 0", "add --keep-checkpoints 1, or --keep-best=off");
    });
}

CheckpointWriter::CheckpointWriter(const CheckpointSettings& settings, const CheckpointContents& contents,
                                   const Model& model, const OptimizerStep& optimizer, Context& context,
                                   Report& report)
    : settings_(settings),
      contents_(contents),
      output_dir_(settings.output_dir),
      writes_model_(context.world->rank() == 0),
      model_(model),
      optimizer_(optimizer),
      context_(context),
      report_(report),
      writers_(context.world->duplicate_control()),
      good_step_(contents.first_step),
      writing_([this] { write_and_publish(); }) {}

std::size_t CheckpointWriter::copy_bytes(const ParameterTable& table, const Sharding& sharding,
                                         const OptimizerSettings& optimizer) {
    std::size_t bytes = sharding.rank == 0 ? std::size_t(table.elements()) * sizeof(float) : 0;
    const auto any = kernels::DType::fp32;  // what is copied does not depend on it
    for (const OptimizerBytes& array : optimizer.kind->bytes(optimizer, table, sharding, any)) bytes += array.copied;
    for (const OptimizerBytes& array : outer_bytes(optimizer.outer, table, sharding)) bytes += array.copied;
    return bytes;
}

void CheckpointWriter::allocate() {
    const std::size_t weights = writes_model_ ? std::size_t(model_.table().elements()) : 0;
    std::size_t elements = weights;
    for (const Copied& copied : copied_) elements += std::size_t(copied.file.elements());
    if (elements > memory_elements_) {
        memory_elements_ = 0;
        memory_ = device::PinnedMemory();  // frees the old memory first
        memory_ = device::PinnedMemory(elements * sizeof(float));
        memory_elements_ = elements;
    }
    std::span<float> rest(reinterpret_cast<float*>(memory_.data()), elements);
    const auto take = [&](std::size_t size) {
        const std::span<float> taken = rest.first(size);
        rest = rest.subspan(size);
        return taken;
    };
    master_weights_ = take(weights);
    for (Copied& copied : copied_) copied.values = take(std::size_t(copied.file.elements()));
}

void CheckpointWriter::begin(TrainerState state) {
    if (begun_) end(false);
    const auto [rank, ranks] = std::pair(context_.world->rank(), context_.world->size());
    state.run = contents_.run;
    state.optimizer = optimizer_.counts();
    state.workers.clear();
    if (optimizer_.optimizer().is_local())
        for (const std::string& counts : context_.world->host_gather(counts_text(state.optimizer)))
            state.workers.push_back(counts_in(counts));
    std::int64_t state_elements = 0;  // of this rank, then of all
    copied_.clear();
    for (StateFile& file : optimizer_.optimizer().state()) {
        const int files = state.state_files[file.name] = file.files(ranks, context_.worker->size());
        if (rank >= files) continue;
        state_elements += file.elements() + kHeaderElements * std::ssize(file.values());
        const std::string name = state_file_name(file.name, rank, files);
        copied_.push_back({.file = std::move(file), .name = name});
    }
    state_elements = context_.world->host_reduce(state_elements, HostReduction::sum);
    // A folder at the old path may be another run's.
    const std::int64_t lost =
        context_.world->host_reduce(report_.folder_is_lost() ? getpid() : 0, HostReduction::max);
    fs::path output_dir = output_dir_;
    if (lost != 0) output_dir += ".process-" + std::to_string(lost);
    const fs::path folder = step_folder(output_dir, state.step);
    begun_.emplace(Begun{.state = std::move(state), .folder = folder, .beside = lost != 0});
    try {
        together(*context_.world, [&] {
            allocate();
            if (!writes_model_) return;
            staged_ = std::make_unique<StagedFolder>(begun_->folder);
            require_room_on_disk(output_dir, model_.table(), state_elements, contents_.tokenizer);
        });
    } catch (const SharedError& error) {
        begun_->failure = error.what();
        staged_.reset();
        return;
    }
    model_.wait_for_parameters();  // in fp32 they are weights that a checkpoint within a round has
    for (const Copied& copied : copied_) {
        float* to = copied.values.data();
        for (const std::span<const float> shard : copied.file.values()) {
            device::copy_to_host(to, shard.data(), shard.size_bytes(), context_.stream);
            to += shard.size();
        }
    }
    if (const auto weights = optimizer_.optimizer().weights_to_save(); weights.empty()) {
        model_.copy_master_weights_to_host(master_weights_);  // waits
    } else {
        model_.copy_to_host(weights, context_.worker->size() == 1, master_weights_);  // waits
    }
    writing_.start();
}

void CheckpointWriter::write_and_publish() {
    omp_set_num_threads(1);  // for loops of this thread: training uses the cores
    together(*writers_, [&] { write(); });
    Manifest all;
    for (const std::string& of_rank : writers_->host_gather(text_of(written_))) all.merge(manifest_of(of_rank));
    on_first_rank(*writers_, [&] { publish(all); });
    if (begun_->beside) return;
    name_best(begun_->state.health);  // before an older one is deleted
    if (writers_->rank() == 0) delete_older();
}

void CheckpointWriter::write() {
    const fs::path folder = StagedFolder::path_of(begun_->folder);
    written_.clear();
    try {
        for (const Copied& copied : copied_)
            written_[copied.name] = write_state(folder / copied.name, copied.file, copied.values);
        if (writes_model_) {
            written_.merge(write_model(folder, model_.table(), master_weights_, contents_.end_of_text));
            written_[kStateName] = write_trainer_state(folder, begun_->state);
            for (const auto& [name, contents] : contents_.tokenizer)
                written_[name] = write_file(folder / name, contents);
        }
    } catch (...) {
        std::error_code none;  // free the disk space at once
        for (const Copied& copied : copied_) fs::remove(folder / copied.name, none);
        if (writes_model_) fs::remove(folder / "model.safetensors", none);
        throw;
    }
}

void CheckpointWriter::end(bool last) {
    if (!begun_) return;
    std::string failure = begun_->failure;
    try {
        writing_.wait();
    } catch (const SharedError& error) {  // but not if ranks lost their connection
        failure = error.what();
    }
    const Begun begun = *std::exchange(begun_, std::nullopt);
    staged_.reset();
    if (failure.empty()) return report_.checkpoint(begun.state.step, begun.folder, begun.waited_seconds);
    const std::string why = "no checkpoint of step " + std::to_string(begun.state.step) + ": " + failure;
    if (last) throw SharedError(*context_.world, why, Blame::runtime);
    report_.checkpoint_failed(begun.state.step, why);
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

void CheckpointWriter::name_best(const HealthState& health) {
    if (!settings_.keep_best || !writes_model_ || health.best_validation_after < 0) return;
    const fs::path folder = step_folder(output_dir_, health.best_validation_after),
                   link = output_dir_ / kBestName, hidden = output_dir_ / ".best.partial";
    std::error_code fault;
    if (!fs::exists(folder / kManifestName, fault) || fs::read_symlink(link, fault) == folder.filename()) return;
    const bool taken = fs::exists(fs::symlink_status(link, fault)) && !fs::is_symlink(link, fault);
    fs::remove(hidden, fault);
    if (taken) fault = std::make_error_code(std::errc::file_exists);
    else fs::create_directory_symlink(folder.filename(), hidden, fault);
    if (!fault) fs::rename(hidden, link, fault);
    if (fault)
        print_stderr("note: " + link.string() + " cannot be linked to " + folder.string() + ": " + fault.message());
}

std::optional<Report::Best> CheckpointWriter::best(const HealthState& health) const {
    const fs::path link = output_dir_ / kBestName;
    std::error_code none;
    if (health.best_validation_after < 0 ||
        fs::read_symlink(link, none) != step_folder("", health.best_validation_after) || !has_files_of_manifest(link))
        return {};
    return Report::Best{health.best_validation, health.best_validation_after, link.string()};
}

// Renames a folder to a hidden name before deleting its files, so that a folder with a final name is always complete.
// Checkpoints whose model may have diverged are counted apart: they do not replace good ones.
void CheckpointWriter::delete_older() {
    if (settings_.keep == 0) return;
    const TrainerState& state = begun_->state;
    if (!state.may_have_diverged() && state.health.high_steps == 0) good_step_ = state.step;
    std::map<std::int64_t, fs::path> folders;
    try {
        folders = step_folders(output_dir_);
    } catch (const Error& error) {
        print_stderr(std::string("note: no old checkpoint is deleted: ") + error.what());
    }
    std::error_code none;
    const fs::path best = fs::read_symlink(output_dir_ / kBestName, none);
    const std::int64_t best_step = settings_.keep_best ? state.health.best_validation_after : -1;
    std::int64_t newer_good = 0, newer_others = 0;
    for (auto entry = folders.rbegin(); entry != folders.rend(); ++entry) {
        const auto& [step, folder] = *entry;
        if (step > state.step) continue;
        std::int64_t& newer = step <= good_step_ ? newer_good : newer_others;
        if (newer < settings_.keep) {
            newer += has_files_of_manifest(folder);  // others cannot be resumed
            continue;
        }
        if (folder.filename() == best || step == best_step) continue;
        if (is_major(step, folder, settings_.major_every)) continue;
        std::error_code fault;
        if (!fs::exists(folder / kManifestName, fault)) continue;  // not a checkpoint of this program
        const fs::path hidden = StagedFolder::path_of(folder);
        fs::remove_all(hidden, fault);
        if (!fault) fs::rename(folder, hidden, fault);
        if (!fault) fs::remove_all(hidden, fault);
        if (fault)
            print_stderr("note: the old checkpoint " + folder.string() + " cannot be deleted: " + fault.message());
    }
}

void load_optimizer(OptimizerStep& step, const fs::path& folder, const TrainerState& state, const ParameterTable& table,
                    Context& context) {
    const Communicator& ranks = *context.world;
    std::vector<std::string> notes;
    together(*context.world, [&] {
        const bool same_workers = std::ssize(state.workers) == ranks.size();
        // The ranks of a worker need the same counts, though those of the checkpoint may have been others.
        const int first = ranks.rank() - context.worker->rank();
        const OptimizerCounts& counts = same_workers ? state.workers[std::size_t(first)] : state.optimizer;
        step.load(counts, [&](const StateFile& file) {
            const auto files = state.state_files.find(file.name);
            notes.push_back(read_state(file, {.folder = folder,
                                              .files = files == state.state_files.end() ? 0 : files->second,
                                              .parameters = table.tensors(), .elements = table.elements(),
                                              .rank = ranks.rank(), .ranks = ranks.size()},
                                       [&](std::span<float> to, std::span<const float> values) {
                device::copy_to_device(to.data(), values.data(), values.size_bytes(), context.stream);
                context.stream.sync();
            }));
        });
        const std::vector<StateFile> used = step.optimizer().state();
        for (const auto& [name, files] : state.state_files)
            if (std::ranges::find(used, name, &StateFile::name) == used.end())
                notes.push_back("optimizer state " + name + ": not loaded, because this run does not use it");
    });
    for (const std::string& note : notes)
        if (!note.empty() && ranks.rank() == 0) print_stderr("note: " + note);
}

}  // namespace llmc
