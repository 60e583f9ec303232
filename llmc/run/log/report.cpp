// report.cpp - lines for the terminal and events for the log
#include "llmc/run/log/report.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/clock.h"
#include "llmc/base/input_file.h"
#include "llmc/base/json_text.h"
#include "llmc/base/number_text.h"
#include "llmc/base/standard_streams.h"
#include "llmc/base/value_text.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

std::string skip_reason(const kernels::StepScalars& x) {
    if (x.skip == kernels::kSkipNoTargets) return "no targets";
    if (x.skip == kernels::kSkipNonFinite) return "loss or gradient norm not finite";
    const auto outlier = [](const char* what, double z, double most) {
        return std::string(what) + " is an outlier: z " + format("%.4g > %.4g", z, most);
    };
    const std::string loss = is_loss_outlier(x) ? outlier("loss", x.loss_z, x.max_loss_z) : "";
    const std::string norm = is_norm_outlier(x) ? outlier("gradient norm", x.norm_z, x.max_norm_z) : "";
    return loss + (loss.empty() || norm.empty() ? "" : ", ") + norm;
}

// "12.3": the batch, in sequences, at which noise and signal have the same power; ">12.3": a lower bound; "~12.3": from
// fewer than 20 steps
std::string noise_text(const Report::Noise& noise) {
    using State = NoiseScale::State;
    const NoiseScale::Estimate& x = noise.estimate;
    const double sequences = (x.state == State::weak ? x.at_least : x.scale) * noise.sequences_per_token;
    if (!std::isfinite(sequences)) return "n/a";
    return (x.state == State::weak ? ">" : x.state == State::warming ? "~" : "") +
           short_text(sequences);
}

// The fraction of the communication time that compute did not wait for.
Json hidden(const CommTimes& communication) {
    if (communication.busy <= 0) return {};
    return std::clamp(1 - communication.waited / communication.busy, 0.0, 1.0);
}

// Unknown numbers are null.
void write_noise(Json& event, const Report::Noise& noise) {
    const NoiseScale::Estimate& x = noise.estimate;
    const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
    event["noise_scale_seq"] = number(x.scale * noise.sequences_per_token);
    event["noise_scale_tokens"] = number(x.scale);
    event["noise_state"] = name_of(x.state);
    event["noise_relative_deviation"] = number(x.relative_deviation);
    event["noise_at_least_tokens"] = number(x.at_least);
}

// Of each pattern the part that differs from the others: "web" of data/web_val_*.bin and data/wiki_val_*.bin.
std::vector<std::string> short_names(const SetLosses& sets) {
    const auto is_of_word = [](unsigned char c) { return std::isalnum(c) || c >= 0x80; };
    std::vector<std::string> patterns, names;
    for (const auto& [pattern, loss] : sets) patterns.push_back(pattern);
    names = patterns;
    for (int of_both_ends = 0; of_both_ends < 2; ++of_both_ends) {
        const auto [least, most] = std::ranges::minmax(names);
        auto common = std::ranges::mismatch(least, most).in1 - least.begin();
        while (common > 0 && is_of_word((unsigned char)(least[std::size_t(common - 1)]))) --common;
        for (std::string& name : names) {
            name.erase(0, std::size_t(common));
            std::ranges::reverse(name);
        }
    }
    return std::ranges::find(names, "") == names.end() ? names : patterns;
}

// Whether "step" is a number of completed steps, as in WITH_STEPS of dev/run_log.py.
bool counts_steps(const std::string& event) {
    constexpr std::array kEvents{"step", "skip", "stage", "val", "hellaswag", "checkpoint", "sample", "resume",
                                 "warning", "outer", "outer_skip"};
    return std::ranges::find(kEvents, event) != kEvents.end();
}

// dev/run_log.py refuses the same lines; test/support/log_lines.txt has cases for both.
void require_events(const std::filesystem::path& log) {
    const std::string text = read_text(log, "log");
    std::int64_t number = 0;
    for (std::string_view rest = text; !rest.empty();) {
        const std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
        ++number;
        if (line.find_first_not_of(" \t\r") == line.npos) continue;
        const nlohmann::json event = parse_json(line);
        const std::string where = log.string() + " line " + std::to_string(number);
        const std::string_view fix = "remove the line: no run writes it, and dev/plot refuses it";
        require(event.is_object() && event.contains("event") && event["event"].is_string(), where,
                in_quotes(line.substr(0, 60)), "a JSON object with an \"event\"", fix);
        const nlohmann::json step = event.value("step", nlohmann::json());
        require(!counts_steps(event["event"]) ||
                    (step.is_number_integer() && step >= 0 && step <= std::int64_t(1) << 53),
                "\"step\" in " + where, excerpt(step), "a number of steps", fix);
        require(event["event"] != "start" || event.contains("log_version"), "\"log_version\" in " + where, "missing",
                "a log of version 2 or later", "move the file away: the resumed run begins a new one");
    }
}

}  // namespace

double longer_minutes(double minutes, double seconds) {
    do minutes *= 2;
    while (minutes * 60 <= seconds);
    return minutes;
}

void require_free_log(const std::string& output_dir) {
    std::error_code none;
    const std::filesystem::path log = std::filesystem::path(output_dir) / kLogName;
    const bool free = !std::filesystem::exists(log, none) || std::filesystem::file_size(log, none) == 0;
    require(output_dir.empty() || free, "--output-dir", in_quotes(output_dir),
            "a folder without another run's " + std::string(kLogName),
            "resume that run with --resume auto, choose another folder, or move that run away");
}

std::unique_ptr<LineFile> open_log_file(const std::string& output_dir, bool creates) {
    try {
        return std::make_unique<LineFile>(std::filesystem::path(output_dir) / kLogName, creates);
    } catch (const std::system_error& refused) {
        const bool locked = refused.code().value() == EWOULDBLOCK;
        if (!locked && !creates) return nullptr;
        fail("--output-dir", in_quotes(output_dir),
             locked ? "a folder that no other run writes to"
                    : "a folder that can be written to: " + refused.code().message(),
             "choose another folder");
    }
}

Report::Report(const std::string& output_dir, std::optional<std::int64_t> total_steps, bool prints, bool appends,
               const ReportLines& lines, std::unique_ptr<LineFile> log)
    : total_steps_(total_steps),
      prints_(prints),
      lines_(lines),
      log_(std::move(log)) {
    if (!prints || output_dir.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(output_dir, error);
    require(!error, "--output-dir", in_quotes(output_dir), "a folder that can be created: " + error.message(),
            "choose another folder");
    if (!log_) log_ = open_log_file(output_dir, /*creates=*/true);
    if (!appends) require_free_log(output_dir);
    appended_ = log_->size() > 0;
    if (!appended_) return;
    log_->drop_half_line();
    require_events(log_->path());
}

void Report::write(const Json& event) {
    if (!log_ || failure_) return;
    Json timed = event;
    if (!timed.contains("time")) timed["time"] = utc_text();
    try {
        log_->append(text_of(timed));  // a model's text may be invalid UTF-8, which is replaced
    } catch (...) {
        failure_ = std::current_exception();
    }
}

void Report::print(const std::string& line) const {
    if (!prints_) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

std::string Report::place(std::int64_t made) const {
    if (only_evaluates()) return "evaluation";
    return "step " + std::to_string(made) + (total_steps_ ? '/' + std::to_string(*total_steps_) : "");
}

std::string Report::at(std::int64_t made) const {
    constexpr std::int64_t kWide = 999'999;  // of a run whose number of steps is unknown
    return format("%-*s", int(place(total_steps_.value_or(kWide)).size()), place(made).c_str());
}

std::string Report::header() const {
    return format("%-*s | %7s %8s %6s %s %5s%s %6s%s", int(at(0).size()), "step", "loss", "lr", "norm", "ms/step",
                  "tok/s", lines_.mfu ? "   MFU" : "", "left", lines_.noise ? "  noise" : "");
}

void Report::print_row(const std::string& row) {
    constexpr int kRowsBelowAHeader = 30;
    printed_ = seconds_now();
    print((rows_ == 0 ? header() + '\n' : "") + row);
    rows_ = (rows_ + 1) % kRowsBelowAHeader;
}

void Report::print_last_row() {
    if (!last_row_.empty()) print_row(std::exchange(last_row_, {}));
}

bool Report::shows(std::int64_t step) {
    constexpr double kMostSilence = 30;  // seconds
    const bool first = !std::exchange(stepped_, true), silent = seconds_now() - printed_ >= kMostSilence;
    return first || silent || step == total_steps_ || step % lines_.log_every == 0;
}

void Report::step(const Step& s) {
    const kernels::StepScalars& x = s.scalars;
    const std::int64_t number = s.size.number;
    positions_ += s.size.positions;
    step_seconds_ += s.speed.ms / 1e3;
    const std::string mfu = s.speed.mfu ? format("%.1f%%", 100 * *s.speed.mfu) : "n/a",
                      left = s.seconds_left ? left_text(*s.seconds_left) : "n/a",
                      noise = s.noise ? noise_text(*s.noise) : "n/a";
    const auto column = [](bool there, const char* pattern, const std::string& text) {
        return there ? format(pattern, text.c_str()) : "";
    };
    const std::string ms = format(s.speed.ms < 99999.5 ? "%.1f" : "%.0f", s.speed.ms);
    last_row_ = format("%s | %7.4f %8.2e %6.3f %7s %5s%s %6s%s", at(number).c_str(), x.loss,
                       double(x.learning_rate), double(x.grad_norm), ms.c_str(),
                       short_text(s.speed.tokens_per_s).c_str(), column(lines_.mfu, " %5s", mfu).c_str(),
                       left.c_str(), column(lines_.noise, " %6s", noise).c_str());
    if (shows(number)) print_last_row();
    Json event{{"event", "step"}, {"step", number}, {"epoch", s.epoch}, {"loss", x.loss}, {"lr", x.learning_rate},
               {"grad_norm", x.grad_norm}, {"clip", x.clip}, {"loss_z", x.loss_z}, {"norm_z", x.norm_z},
               {"tokens", s.size.positions},
               {"valid_tokens", x.valid_targets}, {"tokens_so_far", s.size.positions_after()}, {"ms", s.speed.ms},
               {"tokens_per_s", s.speed.tokens_per_s}, {"valid_tokens_per_s", s.speed.valid_tokens_per_s}};
    if (s.progress && s.progress->is_length) event["progress"] = s.progress->share;
    if (s.speed.mfu) event["mfu"] = *s.speed.mfu;
    event["tasks_ms"] = s.parts.tasks * 1e3;
    event["data_ms"] = s.parts.data * 1e3;
    if (device::memory_is_host_memory()) {
        event["forward_backward_ms"] = s.parts.passes * 1e3;
        event["optimizer_ms"] = s.parts.optimizer * 1e3;
    } else {
        event["enqueue_ms"] = (s.parts.passes + s.parts.optimizer) * 1e3;
    }
    if (s.cpu_share) event["cpu_share"] = *s.cpu_share;
    if (*s.phase) event["stage"] = s.phase;
    if (!std::isnan(x.largest_update)) event["largest_update"] = x.largest_update;
    if (s.communication) {
        event["comm_ms"] = s.communication->busy * 1e3;
        event["comm_hidden"] = hidden(*s.communication);
        event["comm_wait_ms"] = s.waited() * 1e3;
    }
    event["bytes_sent"] = s.bytes_sent;
    if (s.noise) write_noise(event, *s.noise);
    if (logs_gpu_) {
        const GpuReading reading = gpu_ ? gpu_->latest() : GpuReading{};
        if (reading.mean_power_w) event["step_j"] = *reading.mean_power_w * s.speed.ms / 1e3;
        event["gpu"] = gpu_ ? to_json(reading) : Json();
    }
    write(event);
    if (x.skip == kernels::kNoSkip) return;
    print(at(number) + " | update skipped: " + skip_reason(x) + " (" + std::to_string(x.skipped_steps) +
        " so far)");
    write({{"event", "skip"}, {"step", number}, {"reason", skip_reason(x)}, {"skipped_steps", x.skipped_steps}});
}

void Report::warn(std::int64_t made, const Warning& warning) {
    print_last_row();
    if (prints_) print_stderr("warning: " + warning.text);
    write({{"event", "warning"}, {"step", made}, {"kind", warning.kind}, {"text", warning.text}});
}

void Report::phase_begins(std::int64_t made, const std::string& phase, const char* what_begins) {
    if (*what_begins) print(at(made) + " | " + what_begins);
    write({{"event", "stage"}, {"step", made}, {"stage", phase}});
}

void Report::phase_speed(std::int64_t made, const std::string& phase, double ms_before, double ms, std::size_t steps) {
    const double change = std::round(100 * (ms / ms_before - 1));  // percent
    print(format("%s | a %s step takes %.4g ms, one of the phase before %.4g ms: %s (medians of up to %d steps)",
                 at(made).c_str(), phase.c_str(), ms, ms_before,
                 change == 0 ? "equally fast"
                             : format("%.0f %% %s", std::fabs(change), change < 0 ? "faster" : "slower").c_str(),
                 int(steps)));
    write({{"event", "stage_speed"}, {"step", made}, {"stage", phase}, {"ms_before", ms_before}, {"ms", ms}});
}

void Report::outer(const OuterRound& r) {
    if (r.skipped)
        print(at(r.steps) + " | outer step skipped: the mean of the workers' weights is not finite; all return to " +
              "those of the last one");
    write({{"event", r.skipped ? "outer_skip" : "outer"}, {"step", r.steps}, {"round", r.round},
           {"bytes_sent", r.bytes_sent}, {"loss", r.loss}, {"change", r.change}, {"mean_change", r.mean_change},
           {"cosine", r.cosine}});
}

void Report::validation(std::int64_t made, double loss, std::int64_t targets, double seconds,
                        std::optional<double> bits_per_byte, bool best, const SetLosses& sets) {
    print_last_row();
    print(format("%s | validation %8.4f%s%s", at(made).c_str(), loss,
                 bits_per_byte ? format(" | %.4f bits per byte", *bits_per_byte).c_str() : "",
                 only_evaluates() ? (" | " + with_commas(targets, "target")).c_str() : best ? " | best" : ""));
    Json event = {{"event", "val"}, {"step", made}, {"loss", loss}, {"best", best}, {"valid_tokens", targets},
                  {"bits_per_byte", number_or_null(bits_per_byte)}, {"ms", seconds * 1e3}};
    if (sets.size() > 1) {
        const std::vector<std::string> names = short_names(sets);
        Json& losses = event["losses"] = Json::object();
        for (std::size_t i = 0; i < sets.size(); ++i) {
            print(format("%*s | %19.4f | ", int(at(made).size()), "", sets[i].second) + names[i]);
            losses[sets[i].first] = sets[i].second;
        }
    }
    write(event);
}

void Report::hellaswag(std::int64_t made, const HellaSwagScore& score) {
    print(format("%s | HellaSwag acc_norm %.4f +- %.4f, acc %.4f over %s | %s", at(made).c_str(),
               score.acc_norm(), score.acc_norm_error(), score.acc(), counted(score.examples, "example").c_str(),
               clock_text(score.seconds).c_str()));
    write({{"event", "hellaswag"}, {"step", made}, {"acc_norm", score.acc_norm()}, {"acc", score.acc()},
           {"examples", score.examples}, {"ms", score.seconds * 1e3}});
}

void Report::sample(std::int64_t made, const std::string& text) {
    print("--- sample after " + place(made) + " ---\n" + text + "\n---");
    rows_ = 0;  // the table starts again with a header
    write({{"event", "sample"}, {"step", made}, {"text", text}});
}

void Report::checkpoint(std::int64_t made, const std::string& folder, double waited_seconds) {
    print(at(made) + " | saved " + folder);
    saved_step_ = made;
    write({{"event", "checkpoint"}, {"step", made}, {"folder", folder}, {"waited_ms", waited_seconds * 1e3}});
}

void Report::checkpoint_failed(std::int64_t made, const std::string& reason) {
    if (prints_) print_stderr("note: " + reason);
    write({{"event", "checkpoint_failed"}, {"step", made}, {"reason", reason}});
}

void Report::resume(std::int64_t made, const std::string& folder, const std::vector<std::string>& changes) {
    print(folder.empty() ? "starting from the first step: there is no checkpoint"
                       : "resuming after " + place(made) + " from " + folder);
    for (const std::string& change : changes) print("  changed: " + change);
    first_step_ = made;
    write({{"event", "resume"}, {"step", made}, {"folder", folder}, {"changes", changes}});
}

void Report::end(std::int64_t steps, const std::string& reason, double seconds, const std::optional<Best>& best,
                 const std::vector<std::string>& further) {
    print_last_row();
    const double tokens_per_s = step_seconds_ > 0 ? double(positions_) / step_seconds_ : 0;
    print("done: " + reason + (only_evaluates() ? "" : ", " + counted(steps - first_step_, "step")) + " in " +
          clock_text(seconds) +
          (first_step_ > 0 ? ", " + std::to_string(steps) + " in all" : "") +
          (positions_ > 0 ? ", " + short_text(double(positions_)) + " tokens (" + short_text(tokens_per_s) + " tok/s)"
                          : ""));
    const bool stopped = reason.ends_with("(--stop-after)");
    if (best)
        print(format("lowest validation loss: %.4f after ", best->loss) + place(best->after) + ", " + best->folder);
    if ((steps == saved_step_ || stopped) && reason != "error" && !lines_.resume_command.empty()) {
        if (stopped) print("to train further: " + lines_.resume_command + " --stop-after 0");
        else if (further.empty()) print("to resume: " + lines_.resume_command);
        else std::ranges::for_each(further, [&](const std::string& way) { print(way); });
    }
    Json event{{"event", "end"}, {"steps", steps}, {"reason", reason}, {"seconds", seconds}};
    if (positions_ > 0) event["tokens"] = positions_, event["tokens_per_s"] = tokens_per_s;
    write(event);
}

void add_options(OptionList& list, ReportSettings& s) {
    list.group("Machine");
    list.entry("log-gpu", s.log_gpu,
        "log NVML readings of rank 0's GPU with every step: energy, power, clocks, temperature, memory in use, "
        "utilization and throttle reasons");
    list.group("Other");
    list.entry("log-every", s.log_every,
        "print every N-th step on the terminal, the first, the last, and one at least every 30 s; log.jsonl has "
        "every step; auto: about a hundred lines",
        Whole{1, kMany}, ByRun{});
    list.entry("verbose", s.verbose, "print versions, options, data and memory plan before the first step in detail");
}

}  // namespace llmc
