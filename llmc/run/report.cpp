#include "llmc/run/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace llmc {
namespace {

std::string tokens_text(double per_second) {
    char text[32];
    if (per_second >= 1e6) std::snprintf(text, sizeof text, "%.2fM", per_second / 1e6);
    else if (per_second >= 1e3) std::snprintf(text, sizeof text, "%.1fk", per_second / 1e3);
    else std::snprintf(text, sizeof text, "%.0f", per_second);
    return text;
}

template <class... Values>
std::string format(const char* pattern, Values... values) {
    char text[256];
    std::snprintf(text, sizeof text, pattern, values...);
    return text;
}

const char* skip_reason(std::int32_t skip) {
    return skip == kernels::kSkipNoTargets ? "no targets" : "loss or gradient norm not finite";
}

// "12.3 seq": sequences of the batch at which noise and signal have the same power; "> 12.3 seq": a bound; "~12.3 seq":
// of few steps so far
std::string noise_text(const Report::Noise& noise) {
    using State = NoiseScale::State;
    const NoiseScale::Report& x = noise.whole;
    const double sequences = (x.state == State::weak ? x.at_least : x.scale) * noise.sequences_per_token;
    if (!std::isfinite(sequences)) return "n/a";
    return (x.state == State::weak ? "> " : x.state == State::warming ? "~" : "") + format("%.3g seq", sequences);
}

// The part of the communication's time in which compute did not wait for it.
nlohmann::ordered_json hidden(const std::optional<CommTimes>& communication) {
    if (!communication || communication->busy <= 0) return {};
    return std::clamp(1 - communication->waited / communication->busy, 0.0, 1.0);
}

// Numbers that are unknown are null.
void write_noise(nlohmann::ordered_json& event, const std::optional<Report::Noise>& noise) {
    for (const char* key : {"noise_scale_seq", "noise_scale_tokens", "noise_state", "noise_relative_deviation",
                            "noise_at_least_tokens", "noise_scale_tokens_of"})
        event[key] = nullptr;
    if (!noise) return;
    const NoiseScale::Report& x = noise->whole;
    const auto number = [](double value) {
        return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
    };
    event["noise_scale_seq"] = number(x.scale * noise->sequences_per_token);
    event["noise_scale_tokens"] = number(x.scale);
    event["noise_state"] = name_of(x.state);
    event["noise_relative_deviation"] = number(x.relative_deviation);
    event["noise_at_least_tokens"] = number(x.at_least);
    auto& modules = event["noise_scale_tokens_of"] = nlohmann::ordered_json::object();
    for (const auto& [name, scale] : noise->modules) modules[name] = number(scale);
}

}  // namespace

void Report::say(const std::string& line) const {
    if (!speaks_) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

std::string Report::at(std::int64_t step) const {
    return "step " + std::to_string(step) + "/" + std::to_string(total_steps_);
}

void Report::step(const Step& s) {
    const kernels::StepScalars& x = s.scalars;
    const double share = 100.0 * double(s.step + 1) / double(total_steps_);
    say(format("%s | loss %.4f | lr %.2e | norm %.4f | %.1f ms | %s tok/s | MFU %s | %.1f %% | %s left%s",
               at(s.step + 1).c_str(), x.loss, double(x.learning_rate), double(x.grad_norm), s.speed.ms,
               tokens_text(s.speed.tokens_per_s).c_str(),
               s.speed.mfu ? format("%.1f %%", 100 * *s.speed.mfu).c_str() : "n/a", share,
               s.seconds_left ? clock_text(*s.seconds_left).c_str() : "n/a",
               s.noise ? (" | noise " + noise_text(*s.noise)).c_str() : ""));
    nlohmann::ordered_json event{{"event", "step"},
                                 {"step", s.step},
                                 {"epoch", s.epoch},
                                 {"loss", x.loss},
                                 {"lr", x.learning_rate},
                                 {"grad_norm", x.grad_norm},
                                 {"clip", x.clip},
                                 {"tokens", s.positions},
                                 {"valid_tokens", x.valid_targets},
                                 {"tokens_so_far", s.tokens_so_far},
                                 {"ms", s.speed.ms},
                                 {"tokens_per_s", s.speed.tokens_per_s},
                                 {"valid_tokens_per_s", s.speed.valid_tokens_per_s},
                                 {"mfu", number_or_null(s.speed.mfu)}};
    event["comm_ms"] = s.communication ? nlohmann::ordered_json(s.communication->busy * 1e3) : nlohmann::ordered_json();
    event["comm_hidden"] = hidden(s.communication);
    write_noise(event, s.noise);
    log_.write(event);
    if (x.skip == kernels::kNoSkip) return;
    say(at(s.step + 1) + " | update skipped: " + skip_reason(x.skip) + " (" + std::to_string(x.skipped_steps) +
        " so far)");
    log_.write({{"event", "skip"}, {"step", s.step}, {"reason", skip_reason(x.skip)},
                {"skipped_steps", x.skipped_steps}});
}

void Report::validation(std::int64_t step, double loss, std::int64_t targets, double seconds) {
    say(format("%s | validation loss %.4f over %lld tokens | %s tok/s", at(step).c_str(), loss,
               static_cast<long long>(targets), tokens_text(double(targets) / seconds).c_str()));
    log_.write({{"event", "val"}, {"step", step}, {"loss", loss}, {"valid_tokens", targets}, {"ms", seconds * 1e3}});
}

void Report::sample(std::int64_t step, const std::string& text) {
    say("--- sample after " + at(step) + " ---\n" + text + "\n---");
    log_.write({{"event", "sample"}, {"step", step}, {"text", text}});
}

void Report::checkpoint(std::int64_t step, const std::string& folder) {
    say(at(step) + " | saved " + folder);
    log_.write({{"event", "checkpoint"}, {"step", step}, {"folder", folder}});
}

void Report::end(std::int64_t steps, const std::string& reason, double seconds) {
    say("done: " + reason + ", " + std::to_string(steps) + " steps in " + clock_text(seconds));
    log_.write({{"event", "end"}, {"steps", steps}, {"reason", reason}, {"seconds", seconds}});
}

}  // namespace llmc
