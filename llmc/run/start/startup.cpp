// startup.cpp - from the options to the first line of the log, in the order of the output
#include "llmc/run/start/startup.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/clock.h"
#include "llmc/base/fingerprint.h"
#include "llmc/base/json_text.h"
#include "llmc/base/number_text.h"
#include "llmc/base/option.h"
#include "llmc/base/staged_file.h"
#include "llmc/base/standard_streams.h"
#include "llmc/comm/agreement.h"
#include "llmc/comm/placement.h"
#include "llmc/model/batch_upload.h"
#include "llmc/model/outer_steps.h"
#include "llmc/run/checkpoint/checkpoint_writer.h"
#include "llmc/run/start/chosen_values.h"
#include "llmc/run/start/startup_notes.h"
#include "llmc/run/start/train_further.h"
#include "llmc/run/start/version.h"

namespace llmc {
namespace {

// "memory by rank", for --ranks.
std::string memory_by_rank(const RunPlan& plan, const Context& context) {
    const RunSettings& options = plan.settings;
    if (options.dry_run.ranks == 0) return "";
    std::string text = "memory by rank\n", before;
    ModelSetup setup = plan.setup;
    for (int& rank = setup.sharding.rank = 0; rank < setup.sharding.ranks; ++rank) {
        const std::string size = mebibytes(memory_of(plan, setup, context).total());
        if (size != before) text += "  from rank " + std::to_string(rank) + ": " + size + '\n';
        before = size;
    }
    if (options.dry_run.memory.empty() && device::memory_is_host_memory())
        text += "  the ranks share this machine's memory; --memory plans for ranks with their own\n";
    return text + (device::is_gpu() ? "" : "  as this build, for CPUs, would take it: on a GPU without copies for a "
                                           "checkpoint, and with about 1 GiB\n  for NVIDIA's libraries\n");
}

// Throws SharedError if a rank that writes parts of checkpoints does not see rank 0's --output-dir, because no
// checkpoint can be written to folders of the same name on several hosts.
void require_shared_output(const RunPlan& plan, Communicator& ranks) {
    const RunSettings& options = plan.settings;
    constexpr double kPatience = 5;  // seconds; a network file system may show other hosts a new file later
    if (options.eval_only || options.checkpoints.output_dir.empty() || ranks.size() == 1) return;
    const bool writes =
        ranks.rank() > 0 && CheckpointWriter::copy_bytes(plan.table, plan.setup.sharding, plan.optimizer) > 0;
    const std::filesystem::path file = std::filesystem::path(options.checkpoints.output_dir) /
                                       (".shared-" + ranks.host_gather(std::to_string(getpid()))[0]);
    on_first_rank(ranks, [&] { write_whole(file, ""); });
    std::exception_ptr not_shared;
    try {
        std::error_code fault;
        for (const double began = seconds_now(); writes && !std::filesystem::exists(file, fault);) {
            require(seconds_now() < began + kPatience, "--output-dir", in_quotes(options.checkpoints.output_dir),
                    "the folder of rank 0, because with these flags every rank writes a part of each checkpoint",
                    "put it on a file system that all hosts share");
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
    } catch (const Error&) {
        not_shared = std::current_exception();
    }
    ranks.barrier();
    std::error_code gone;
    if (ranks.rank() == 0) std::filesystem::remove(file, gone);
    share_failure(ranks, not_shared);
}

void print_notes(const std::vector<std::string>& notes) {
    for (const std::string& note : notes) print_stderr("note: " + note);
}

void print_tuning(std::vector<StartupItem>& items, const Tuning& tuning, bool first_rank) {
    items.push_back(tuning_item(tuning));
    if (!first_rank) return;
    print_notes(tuning.notes());
    std::cout << items.back().lines << std::flush;
}

// Loads the same weights on every rank: those of `start`, whose file is then closed, or new ones. Throws SharedError if
// the weights differ between ranks.
void load_initial_weights(Model& model, StartingPoint& start, const RunPlan& plan, Communicator& ranks) {
    const auto weights = together(ranks, [&] { return initial_weights(start, plan.table, plan.settings.seed); });
    start.checkpoint.reset();
    const std::string bits = ranks.size() > 1 ? fingerprint(std::as_bytes(std::span(weights))) : "";
    require_same(ranks, {{"initial weights with the fingerprint", bits}}, "use the same --init on all ranks");
    model.load(weights);
}

// Times matrix products on the model's own tensors, before there are data or gradients.
void choose_products(Model& model, const RunPlan& plan, Context& context) {
    const int vocabulary = plan.setup.config.vocabulary;
    std::vector<int> tokens(plan.setup.shape.rows());
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = int(i % std::size_t(vocabulary));
    BatchUpload upload(plan.setup, context);
    model.choose_products(upload.upload(tokens, tokens, plan.setup.shape, Purpose::evaluation),
                          plan.steps.micro_batches(plan.steps.largest()) > 1);
}

}  // namespace

std::vector<Fact> build_facts(const nlohmann::ordered_json& version) {
    std::vector<Fact> facts;
    for (const auto& [name, value] : version.items())
        facts.push_back({name, value.is_null() ? "unknown" : value.get<std::string>()});
    return facts;
}

std::vector<Fact> command_line_facts(const CommandLine& line) {
    RunSettings settings = line.settings;
    std::vector<Fact> facts = build_facts(version_json());
    for (const auto& [name, request] : {std::pair("--help", Request::help), {"--version", Request::version},
                                        {"--print-config", Request::print_config}})
        facts.push_back({name, line.request == request ? "true" : "false"});
    std::map<std::string, std::string> flags;
    for (const Option& option : option_table(settings).options)
        if (option.ranks == OnRanks::all_equal) flags["--" + option.name()] = text_of(option.json());
    for (const auto& [name, value] : flags) facts.push_back({name, value});
    return facts;
}

CommandLine parse_on_all_ranks(int argc, char** argv, Communicator& ranks) {
    CommandLine line = together(ranks, [&] { return parse(argc, argv); });
    require_same(ranks, command_line_facts(line), "start all ranks with the same flags");
    return line;
}

Context open_context(const RunSettings& options, std::shared_ptr<Communicator>& communicator) {
    const OuterSettings& outer = options.optimizer.outer;
    Placement placement = place_rank(*communicator, options.placement);
    if (placement.nccl) communicator = over_nccl(communicator);
    std::shared_ptr<Communicator> worker = communicator, across = communicator;
    const int ranks = communicator->size(), rank = communicator->rank(),
              of_worker = options.dry_run.ranks > 0
                              ? ranks : together(*communicator, [&] { return ranks_of_worker(outer, ranks); });
    if (outer.every > 0 && of_worker == 1) {
        worker = alone();
    } else if (outer.every > 0) {
        worker = communicator->split(rank / of_worker);
        across = communicator->split(rank % of_worker);
    }
    auto tuned = std::make_unique<kernels::TunedAlgorithms>();
    const AlgorithmSettings& algorithms = options.algorithms;
    kernels::Matmul matmul(
        {.tf32 = options.precision.tf32, .bf16 = algorithms.bf16_arithmetic, .tuned = tuned.get()});
    return {std::move(placement.device), device::Stream(), std::move(matmul),
            kernels::Attention({.method = algorithms.attention, .deterministic = algorithms.deterministic,
                                .tuned = tuned.get()}),
            communicator, std::move(worker), std::move(across), std::move(tuned)};
}

std::unique_ptr<LineFile> lock_log(const RunSettings& options, Communicator& ranks) {
    std::unique_ptr<LineFile> log;
    on_first_rank(ranks, [&] {
        std::filesystem::path folder = options.checkpoints.output_dir;
        if (!folder.has_filename()) folder = folder.parent_path();  // a slash at the end would follow a link
        std::error_code none;
        require(!std::filesystem::is_symlink(folder, none) || std::filesystem::exists(folder, none), "--output-dir",
                in_quotes(options.checkpoints.output_dir) + ", a symbolic link to nothing", "a folder",
                "remove the link, or make its target");
        if (!options.dry_run.plans && !folder.empty())
            log = open_log_file(options.checkpoints.output_dir, /*creates=*/false);
    });
    return log;
}

Startup prepare_run(const RunSettings& given, ResumeSearch search, Context& context) {
    Communicator& ranks = *context.world;
    const bool first_rank = ranks.rank() == 0;
    const std::int64_t planned_ranks = given.dry_run.ranks;
    require(planned_ranks == 0 || ranks.size() == 1, "--ranks", planned_ranks, "one process, without mpirun");
    if (const std::size_t memory = memory_bytes(given.dry_run)) context.device.memory_free = memory;
    else if (planned_ranks > 0 && device::memory_is_host_memory())
        context.device.memory_free /= std::size_t(planned_ranks);
    Tuning tuning(given.algorithms, /*times=*/!given.dry_run.plans, context);
    Resumption* const resumption = search.resumption ? &*search.resumption : nullptr;
    const std::vector<int> nodes = nodes_of(ranks);
    RunFiles files = together(ranks, [&] { return open_files(given); });
    RunSettings settings = given;
    const auto starting_point_of = [&] {
        const NewestModel model =
            resumption ? NewestModel{resumption->folder, {}} : model_of_init(settings.model.init, ranks);
        return together(ranks, [&] { return starting_point(model, settings, files); });
    };
    std::optional<StartingPoint> model;
    if (resumption || !option_table(settings)["init"].is_left_to_run()) model.emplace(starting_point_of());
    const ChosenValues values = choose_values(settings, files, model ? &*model : nullptr, resumption, tuning, context);
    StartingPoint start = model ? std::move(*model) : starting_point_of();
    RunPlan made = together(ranks, [&] { return plan_model(settings, files, start, resumption, nodes, context); });
    resolve_auto(made, resumption, context);
    RunBatches batches = together(ranks, [&] { return make_batches(files, made.settings, made.steps); });
    DataLoader* const loader = batches.loader.get();
    together(ranks, [&] { plan_steps(made, files, loader, resumption, nodes); });
    const RunPlan plan = std::move(made);
    const RunSettings& options = plan.settings;
    RunData data{std::move(files), std::move(batches)};
    for (const auto& facts : {data.files.train_facts, data.files.val_facts, data.files.hellaswag_facts})
        require_same(ranks, facts, "use the same files on all ranks");
    const bool appends = appends_to_log(options.checkpoints, resumption);
    on_first_rank(ranks, [&] {
        require_usable_names(options.checkpoints);
        if (!appends) require_free_log(options.checkpoints.output_dir);
        if (!options.eval_only) require_free_names(search, options.checkpoints);
    });
    Changes changes;
    if (resumption)
        changes = together(ranks, [&] {
            const Changes since = check_resumption(plan, data.batches, *resumption);
            // New data (--allow-new-data) are read from their first row; --overfit-batch repeats the first batch.
            if (!since.data && !options.data.overfit_batch && loader) loader->seek(resumption->state.data);
            forget_other_data(resumption->state, since);
            return since;
        });
    tuning.choose([&] {  // before the memory plan, which depends on what attention stores
        context.attention.choose(plan.setup.dtype, attention_shape(plan.setup, plan.setup.shape),
                                 plan.setup.training, context.stream);
        context.matmul.describe(plan.setup.dtype);
    });
    MemoryPlan memory = together(ranks, [&] { return memory_of(plan, plan.setup, context); });
    memory.largest_micro_batch = int(-ranks.host_reduce(-memory.largest_micro_batch, HostReduction::max));
    const std::vector<std::string> notes = startup_notes(plan, data, start, context);
    if (first_rank) print_notes(notes);
    std::vector<StartupItem> items = startup_items(plan, data, memory, context);
    items.push_back(chosen_item(values));
    const std::string text = terminal_text(items, options);
    if (first_rank && options.dry_run.plans)
        print_stdout(text + memory_by_rank(plan, context) + figures_text(plan, data, values.facts.speed));
    else if (first_rank) std::cout << text << std::flush;
    try {
        const bool one_size = options.batch.schedule.empty(), trains = !options.eval_only,
                   has_step = trains || !one_size || options.batch.tokens > 0;
        const std::int64_t step = has_step ? plan.steps.common() : 0;
        together(ranks, [&] {
            require_room(memory, plan.steps.micro_batches(step) * options.batch.micro_batch,
                         trains && one_size ? " -d " + std::to_string(step) : "");
        });
    } catch (const Error& error) {
        if (!options.precision.ignore_memory_plan) throw;
        if (first_rank) print_stderr(std::string("note: continuing because of --ignore-memory-plan: ") + error.what());
    }
    if (options.dry_run.plans) print_tuning(items, tuning, first_rank);
    return {plan, std::move(search), std::move(changes), appends, std::move(data), std::move(start),
            std::move(tuning), std::move(items)};
}

std::unique_ptr<Model> make_initial_model(Startup& startup, Context& context) {
    const RunPlan& plan = startup.plan;
    ProgressLine progress(context.world->rank() == 0);  // large models take seconds
    progress.show("initializing the model");
    auto model = make_model(plan.setup, plan.table, context);
    load_initial_weights(*model, startup.start, plan, *context.world);
    if (kernels::Matmul::chooses_by_shape()) startup.tuning.choose([&] { choose_products(*model, plan, context); });
    startup.tuning.save();
    const bool first_rank = context.world->rank() == 0;
    print_tuning(startup.items, startup.tuning, first_rank);
    for (const OptimizerReport& report : {plan.optimizer.kind->measure(plan.optimizer_run(), context),
                                          measure_outer_steps(plan.optimizer_run(), context)}) {
        startup.items.push_back(optimizer_item(report));
        if (first_rank) std::cout << startup.items.back().lines << std::flush;
    }
    return model;
}

Report open_report(Startup& startup, Context& context) {
    Communicator& ranks = *context.world;
    const RunPlan& plan = startup.plan;
    const RunSettings& options = plan.settings;
    const bool first_rank = ranks.rank() == 0;
    require_shared_output(plan, ranks);
    Report report = together(ranks, [&] {
        return Report(options.checkpoints.output_dir, plan.steps.total, first_rank, startup.appends,
                      {.log_every = options.report.log_every, .mfu = plan.peak_flops.has_value(),
                       .noise = plan.measures_noise(),
                       .resume_command = options.checkpoints.output_dir.empty()
                                             ? ""
                                             : resume_command(options.checkpoints.output_dir, "auto", ranks.size()),
                       .max_minutes = options.length.is_timed() ? options.length.minutes : 0},
                      std::move(startup.log));
    });
    on_first_rank(ranks, [&] {
        clear_for_resumption(startup.search, options.checkpoints);
        if (!options.checkpoints.output_dir.empty())
            write_whole(std::filesystem::path(options.checkpoints.output_dir) / kOptionsName, config_text(options));
    });
    if (options.checkpoints.output_dir.empty() && first_rank)
        std::cout << "no --output-dir: neither log nor model will be saved\n";
    if (options.report.log_gpu && !options.checkpoints.output_dir.empty() && first_rank)
        if (auto monitor = monitor_gpu(context.device.id); monitor || device::is_gpu())
            report.log_gpu(std::move(monitor));
    report.start(start_event(startup.items));
    if (const Resumption* const resumption = startup.resumption(); resumption || report.appended())
        report.resume(plan.first_step, resumption ? resumption->folder.string() : "", startup.changes.options);
    return report;
}

}  // namespace llmc
