// attention.cpp - class Attention: which implementation computes attention
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <type_traits>

#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/check.h"
#include "kernels/attention/flash.h"
#include "kernels/attention/implementations.h"
#include "kernels/attention/probe.h"
#include "kernels/tuning/tuned_algorithms.h"
#include "kernels/tuning/timing.h"

namespace kernels {
namespace {

// Limit of cuDNN's workspace in bytes: its deterministic backward pass on Hopper stores seq_len^2 numbers per head.
// Above the limit `--attention auto` selects flash attention, which needs no workspace.
constexpr std::size_t kAutomaticWorkspace = std::size_t(4) << 30;

std::string name_of(AttentionMethod method) {
    return std::string(std::ranges::find(kAttentionMethods, method,
                                         [](const auto& entry) { return entry.second; })->first);
}

[[noreturn]] void refuse(AttentionMethod asked, std::string_view expected, std::string_view hint) {
    fail("--attention", '"' + name_of(asked) + '"', expected, hint);
}

}  // namespace

bool AttentionBuild::flash_takes(int head_size) const {
    return std::ranges::find(flash_head_sizes, head_size) != flash_head_sizes.end();
}

std::vector<AttentionMethod> attention_candidates(AttentionMethod asked, const AttentionBuild& build, DType dtype,
                                                  int head_size) {
    using enum AttentionMethod;
    if (asked == automatic) {
        std::vector<AttentionMethod> candidates;
        if (build.cudnn && dtype == DType::bf16) candidates.push_back(cudnn);
        if (build.flash_takes(head_size) && dtype == DType::bf16) candidates.push_back(flash);
        candidates.push_back(plain);
        return candidates;
    }
    if (!build.choice())
        refuse(asked, "auto: on a CPU there is one implementation, " + std::string(build.plain),
               "omit the flag; on a GPU build with make DEVICE=cuda");
    if (asked == cudnn && !build.cudnn)
        refuse(asked, "auto, flash or plain: this build has no cuDNN",
               "build where make finds cudnn.h, libcudnn and cuDNN's frontend (README)");
    if (asked != plain && dtype != DType::bf16)
        refuse(asked, "auto or plain: " + name_of(asked) + " computes in bf16 only", "set --dtype bf16");
    if (asked == flash && !build.flash_takes(head_size)) {
        std::string sizes;
        for (const int size : build.flash_head_sizes) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
        refuse(asked,
               "auto or plain: the model's heads have " + std::to_string(head_size) + " channels, flash supports " +
                   sizes,
               "omit the flag, or choose another number of heads");
    }
    return {asked};
}

std::string AttentionForm::name() const {
    return name_of(method) + (method == AttentionMethod::cudnn && deterministic ? ", deterministic" : "");
}

std::vector<AttentionForm> attention_forms(const std::vector<AttentionMethod>& methods, bool backward,
                                           bool deterministic) {
    std::vector<AttentionForm> forms;
    for (AttentionMethod method : methods) {
        if (method == AttentionMethod::cudnn && backward && !deterministic) forms.push_back({method, false});
        forms.push_back({method, true});
    }
    return forms;
}

struct Attention::State {
    AttentionSettings settings;
    AttentionBuild build = attention_build();
    CudnnAttention cudnn{};
    struct Decision {
        bool backward;
        AttentionPlan plan;
    };
    std::map<std::pair<DType, AttentionShape>, Decision> decisions{};

    std::string library() const {
        return "attention with " + (build.cudnn ? "cuDNN " + cudnn_version() : std::string("no cuDNN"));
    }
    static std::string text_of(const AttentionShape& s) {
        return ", batch " + std::to_string(s.batch) + ", seq_len " + std::to_string(s.seq_len) + ", heads " +
               std::to_string(s.heads) + ", head_size " + std::to_string(s.head_size);
    }
    // Key of stored results: the problem, and everything that determines the candidates.
    std::string key(const AttentionProblem& problem) const {
        return name_of(settings.method) + (problem.dtype == DType::bf16 ? " bf16" : " fp32") + text_of(problem.shape) +
               (problem.backward ? ", both passes" : ", forward") + (settings.deterministic ? ", deterministic" : "");
    }
    std::vector<AttentionForm> forms(const AttentionProblem& problem) const {
        return attention_forms(attention_candidates(settings.method, build, problem.dtype, problem.shape.head_size),
                               problem.backward, settings.deterministic);
    }

    static CudnnPass backward_pass(bool deterministic) {
        return deterministic ? CudnnPass::backward_deterministic : CudnnPass::backward_fast;
    }
    static std::vector<CudnnPass> passes(const AttentionForm& form, const AttentionProblem& problem) {
        if (form.method != AttentionMethod::cudnn) return {};
        if (!problem.backward) return {CudnnPass::forward};
        return {CudnnPass::forward, backward_pass(form.deterministic)};
    }
    std::size_t max_workspace_bytes() const {
        return settings.method == AttentionMethod::cudnn ? std::size_t(-1) : kAutomaticWorkspace;
    }
    std::size_t workspace_bytes(const AttentionForm& form, const AttentionProblem& problem) const {
        std::size_t most = 0;
        for (const CudnnPass pass : passes(form, problem))
            most = std::max(most, cudnn.workspace_bytes(problem.shape, pass));
        return most;
    }
    // Empty if the form supports the problem; otherwise the reason why not.
    std::string refusal(const AttentionForm& form, const AttentionProblem& problem) {
        for (const CudnnPass pass : passes(form, problem))
            if (std::string why = cudnn.refusal(problem.shape, pass); !why.empty()) return why;
        const std::size_t bytes = workspace_bytes(form, problem);
        if (bytes <= max_workspace_bytes()) return "";
        return "its workspace takes " + std::to_string(bytes >> 20) + " MiB, and the limit of auto is " +
               std::to_string(kAutomaticWorkspace >> 20);
    }

    AttentionPlan plan_of(const AttentionForm& form, const AttentionProblem& problem) const {
        return {.method = form.method, .deterministic = form.deterministic,
                .workspace_bytes = workspace_bytes(form, problem)};
    }
    // The stored algorithm, if it can be used.
    std::optional<AttentionPlan> chosen(const AttentionProblem& problem, const std::vector<AttentionForm>& forms) {
        const TunedAlgorithm* const known =
            settings.tuned && forms.size() > 1 ? settings.tuned->find(library(), key(problem)) : nullptr;
        if (!known) return std::nullopt;
        for (const AttentionForm& form : forms)
            if (form.name() == known->taken && refusal(form, problem).empty()) {
                AttentionPlan plan = plan_of(form, problem);
                plan.times = known->why;
                return plan;
            }
        settings.tuned->reject(library(), key(problem));
        return std::nullopt;
    }
    AttentionPlan decide(const AttentionProblem& problem) {
        const std::vector<AttentionForm> all = forms(problem);
        if (const auto plan = chosen(problem, all)) return *plan;
        std::string why_not_cudnn;
        for (const AttentionForm& form : all) {
            const std::string why = refusal(form, problem);
            if (!why.empty()) {
                why_not_cudnn = why;
                continue;
            }
            AttentionPlan plan = plan_of(form, problem);
            if (form.method != AttentionMethod::cudnn) plan.why_not_cudnn = why_not_cudnn;
            return plan;
        }
        refuse(settings.method, "a method that supports this model and GPU; cuDNN's reason: " + why_not_cudnn,
               "use auto, flash or plain");
    }
    const AttentionPlan& plan(const AttentionProblem& problem) {
        const auto key = std::pair(problem.dtype, problem.shape);
        auto known = decisions.find(key);
        if (known == decisions.end() || (problem.backward && !known->second.backward))
            known = decisions.insert_or_assign(key, Decision{problem.backward, decide(problem)}).first;
        return known->second.plan;
    }

    template <class T>
    void forward(AttentionMethod method, const AttentionForward<T>& op, StreamRef stream) {
        if constexpr (std::is_same_v<T, bf16>) {
            if (method == AttentionMethod::cudnn) return check_attention(op), cudnn.forward(op, stream);
            if (method == AttentionMethod::flash) return flash_attention_forward(op, stream);
        }
        attention_forward(op, stream);
    }
    template <class T>
    void backward(AttentionMethod method, bool deterministic, const AttentionBackward<T>& op, StreamRef stream) {
        if constexpr (std::is_same_v<T, bf16>) {
            if (method == AttentionMethod::cudnn)
                return check_attention(op), cudnn.backward(op, backward_pass(deterministic), stream);
            if (method == AttentionMethod::flash) return flash_attention_backward(op, stream);
        }
        attention_backward(op, stream);
    }

    // Times every supported form: forward and backward pass one after the other, as in training. Does nothing in fp32,
    // which has only one form.
    void choose(const AttentionProblem& problem, StreamRef stream) {
        if (!settings.tuned || !settings.tuned->timing || problem.dtype != DType::bf16) return;
        std::vector<AttentionForm> supported;
        try {
            supported = forms(problem);
        } catch (const Error&) {  // plan() throws it, on all ranks
            return;
        }
        if (chosen(problem, supported)) return;
        std::string refused;
        std::erase_if(supported, [&](const AttentionForm& form) {
            const std::string why = refusal(form, problem);
            if (!why.empty()) refused += "; not " + form.name() + ": " + why;
            return !why.empty();
        });
        if (supported.size() < 2) return;
        try {
            const AttentionProbe probe(problem, stream);
            time_forms(problem, supported, refused, probe, stream);
        } catch (const Error& error) {
            if (!can_run(stream)) throw;
            settings.tuned->note(key(problem) + ": uses the first supported method; " + error.what());
        }
        cudnn.free_workspace();
        decisions.clear();
    }
    void time_forms(const AttentionProblem& problem, const std::vector<AttentionForm>& supported,
                    const std::string& refused, const AttentionProbe& probe, StreamRef stream) {
        const auto name = [&](int candidate) {
            return "attention " + key(problem) + ": " + supported[std::size_t(candidate)].name();
        };
        const auto run = [&](int candidate) {
            const AttentionForm& form = supported[std::size_t(candidate)];
            forward(form.method, probe.forward(), stream);
            if (problem.backward) backward(form.method, form.deterministic, probe.backward(), stream);
        };
        const Timing timing =
            time_candidates({int(supported.size()), name, run}, settings.tuned->cache_bytes, stream);
        if (timing.ranking.empty()) throw Error("every attention method failed" + timing.notes, Blame::runtime);
        const auto fastest = std::size_t(timing.ranking.front());
        std::string times;
        for (std::size_t i = 0; i < supported.size(); ++i) {
            char text[48];
            std::snprintf(text, sizeof text, " %.3f ms", 1e3 * timing.seconds[i]);
            times += (i > 0 ? "; " : "") + supported[i].name() + text;
        }
        settings.tuned->keep(library(), key(problem),
                            {supported[fastest].name(), times + timing.notes + refused, timing.seconds[fastest]});
    }
};

Attention::Attention(const AttentionSettings& settings) : state_(new State{settings}) {}
Attention::~Attention() = default;
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;

void Attention::choose(const AttentionProblem& problem, StreamRef stream) { state_->choose(problem, stream); }

const AttentionPlan& Attention::plan(const AttentionProblem& problem) const { return state_->plan(problem); }

std::string Attention::describe(const AttentionProblem& problem) const {
    const AttentionPlan& plan = state_->plan(problem);
    std::string text = plan.method == AttentionMethod::cudnn   ? "cuDNN " + cudnn_version() + " flash attention"
                       : plan.method == AttentionMethod::flash ? "flash (mma.sync)"
                                                               : std::string(state_->build.plain);
    if (plan.method == AttentionMethod::cudnn && problem.backward)
        text += plan.deterministic ? ", deterministic" : ", not deterministic";
    if (state_->build.choice() && state_->settings.method == AttentionMethod::automatic) text += ", selected by auto";
    if (!plan.times.empty()) text += " (" + plan.times + ")";
    return plan.why_not_cudnn.empty() ? text : text + "; not cuDNN: " + plan.why_not_cudnn;
}

std::string Attention::library() const { return state_->library(); }

template <class T>
void Attention::forward(const AttentionForward<T>& op, StreamRef stream) {
    const auto& plan = state_->plan({dtype_of<T>, {op.batch, op.seq_len, op.heads, op.head_size}, false});
    state_->forward(plan.method, op, stream);
}

template <class T>
void Attention::backward(const AttentionBackward<T>& op, StreamRef stream) {
    const auto& plan = state_->plan({dtype_of<T>, {op.batch, op.seq_len, op.heads, op.head_size}, true});
    state_->backward(plan.method, plan.deterministic, op, stream);
}

template void Attention::forward(const AttentionForward<float>&, StreamRef);
template void Attention::forward(const AttentionForward<bf16>&, StreamRef);
template void Attention::backward(const AttentionBackward<float>&, StreamRef);
template void Attention::backward(const AttentionBackward<bf16>&, StreamRef);

}  // namespace kernels
