// attention.cpp - class Attention: which implementation computes attention
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <type_traits>

#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/check.h"
#include "kernels/attention/flash.h"
#include "kernels/attention/implementations.h"
#include "kernels/device/memory.h"
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

CudnnPass backward_pass(bool deterministic) {
    return deterministic ? CudnnPass::backward_deterministic : CudnnPass::backward_fast;
}

// The name of attention_forward and attention_backward for the log.
std::string_view plain_name(const std::vector<AttentionMethod>& methods) {
    return methods.size() > 1 ? "plain" : "tiled on the CPU";
}

// cuDNN 9.19's plans for packed sequences, of 12 heads of 64 and at most 1024 tokens each: on an H200 the deterministic
// backward pass stores seq_len^2 numbers per head and sequence, 12.3 GiB for 512; on an A100 there is none.
constexpr const char* kWholeRows = "its plans for documents need too much workspace or are not deterministic";

void require_supported(const AttentionSettings& settings, const std::vector<AttentionMethod>& methods, DType dtype,
                       const AttentionShape& shape) {
    using enum AttentionMethod;
    const AttentionMethod asked = settings.method;
    if (methods.size() == 1)
        refuse(asked, "auto: on a CPU there is one implementation, " + std::string(plain_name(methods)),
               "omit the flag; on a GPU build with make DEVICE=cuda");
    if (std::ranges::find(methods, asked) == methods.end())
        refuse(asked, "auto, flash or plain: this build has no cuDNN",
               "build where make finds cudnn.h, libcudnn and cuDNN's frontend (README)");
    if (asked == cudnn && shape.documents)
        refuse(asked, std::string("auto, flash or plain with --document-mask: ") + kWholeRows, "omit one of the flags");
    if (asked != plain && dtype != DType::bf16)
        refuse(asked, "auto or plain: " + name_of(asked) + " computes in bf16 only", "set --dtype bf16");
    if (asked == flash && !flash_takes(shape.head_size)) {
        std::string sizes;
        for (const int size : kFlashHeadSizes) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
        refuse(asked,
               "auto or plain: the model's heads have " + std::to_string(shape.head_size) +
                   " channels, flash supports " + sizes,
               "omit the flag, or choose another number of heads");
    }
}

// Uniform in (-1.7, 1.7), variance 1, with a period of 2^20 elements, more than a multiprocessor's caches hold: as
// large as in training.
void fill(std::span<bf16> to, StreamRef stream) {
    std::vector<bf16> numbers(std::min(to.size(), std::size_t(1) << 20));
    std::uint32_t state = 1;
    for (bf16& x : numbers) {
        state = state * 1664525u + 1013904223u;
        x = bf16_from_float(float(state >> 8) * (3.4f / (1 << 24)) - 1.7f);
    }
    for (; !to.empty(); to = to.subspan(std::min(to.size(), numbers.size())))
        device::copy_to_device(to.data(), numbers.data(), std::min(to.size(), numbers.size()) * sizeof(bf16), stream);
    device::sync(stream);
}

}  // namespace

std::string AttentionPlan::name() const {
    if (method != AttentionMethod::cudnn) return name_of(method);
    return name_of(method) + ' ' + std::to_string(forward_plan) +
           (backward ? '+' + std::to_string(backward_plan) : "") + (deterministic ? ", deterministic" : "");
}

std::vector<AttentionPlan> attention_candidates(const AttentionSettings& settings,
                                                const std::vector<AttentionMethod>& methods, DType dtype,
                                                const AttentionShape& shape, bool backward,
                                                const std::function<int(CudnnPass)>& plans) {
    using enum AttentionMethod;
    const bool any = settings.method == automatic;
    if (!any) require_supported(settings, methods, dtype, shape);
    std::vector<AttentionPlan> candidates;
    for (const AttentionMethod method : methods) {
        const bool supported =
            method == plain ||
            (dtype == DType::bf16 && (method == cudnn ? !shape.documents : flash_takes(shape.head_size)));
        if (!supported || (!any && method != settings.method)) continue;
        for (const bool deterministic : {false, true}) {
            if (!deterministic && (method != cudnn || !backward || settings.deterministic)) continue;
            const int forward = method == cudnn && plans ? plans(CudnnPass::forward) : 1,
                      back = method == cudnn && backward && plans ? plans(backward_pass(deterministic)) : 1;
            for (int pair = 0; pair < forward * back; ++pair)
                candidates.push_back({method, backward, deterministic, pair / back, pair % back});
        }
    }
    return candidates;
}

struct Attention::State {
    AttentionSettings settings;
    std::vector<AttentionMethod> methods = attention_methods();
    CudnnAttention cudnn{};
    std::map<std::pair<DType, AttentionShape>, AttentionPlan> plans{};

    std::string library() const {
        const std::string version = cudnn_version();
        return "attention with " + (version.empty() ? std::string("no cuDNN") : "cuDNN " + version);
    }
    // Key of stored results: the shape, and everything that determines the candidates. Only bf16 has more than one.
    std::string key(const AttentionShape& s, bool backward) const {
        return name_of(settings.method) + " bf16, batch " + std::to_string(s.batch) + ", seq_len " +
               std::to_string(s.seq_len) + ", heads " + std::to_string(s.heads) + ", head_size " +
               std::to_string(s.head_size) + (backward ? ", both passes" : ", forward") +
               (settings.deterministic ? ", deterministic" : "") + (s.documents ? ", documents" : "");
    }
    std::vector<AttentionPlan> candidates(DType dtype, const AttentionShape& shape, bool backward) {
        return attention_candidates(settings, methods, dtype, shape, backward,
                                    [&](CudnnPass pass) { return cudnn.plans(shape, pass); });
    }

    // Sets the candidate's workspace_bytes. Empty if it supports the shape; otherwise the reason why not.
    std::string refusal(AttentionPlan& candidate, const AttentionShape& shape) {
        if (candidate.method != AttentionMethod::cudnn) return "";
        std::vector<std::pair<CudnnPass, int>> passes{{CudnnPass::forward, candidate.forward_plan}};
        if (candidate.backward) passes.emplace_back(backward_pass(candidate.deterministic), candidate.backward_plan);
        for (const auto& [pass, plan] : passes) {
            if (std::string why = cudnn.refusal(shape, pass, plan); !why.empty()) return why;
            candidate.workspace_bytes = std::max(candidate.workspace_bytes, cudnn.workspace_bytes(shape, pass, plan));
        }
        if (settings.method == AttentionMethod::cudnn || candidate.workspace_bytes <= kAutomaticWorkspace) return "";
        return "its workspace takes " + std::to_string(candidate.workspace_bytes >> 20) +
               " MiB, and the limit of auto is " + std::to_string(kAutomaticWorkspace >> 20);
    }

    // The stored algorithm, if it can be used.
    std::optional<AttentionPlan> chosen(const std::vector<AttentionPlan>& candidates, const AttentionShape& shape) {
        if (!settings.tuned || candidates.size() < 2) return std::nullopt;
        const std::string key = this->key(shape, candidates.front().backward);
        const TunedAlgorithm* const known = settings.tuned->find(library(), key);
        if (!known) return std::nullopt;
        for (AttentionPlan candidate : candidates)
            if (candidate.name() == known->taken && refusal(candidate, shape).empty())
                return described(candidate, shape, known->why);
        settings.tuned->reject(library(), key);
        return std::nullopt;
    }
    AttentionPlan decide(const std::vector<AttentionPlan>& candidates, const AttentionShape& shape) {
        if (const auto plan = chosen(candidates, shape)) return *plan;
        std::string why_not_cudnn;
        for (AttentionPlan candidate : candidates) {
            const std::string why = refusal(candidate, shape);
            if (why.empty()) {
                if (candidate.method != AttentionMethod::cudnn) candidate.why_not_cudnn = why_not_cudnn;
                return described(candidate, shape, "");
            }
            why_not_cudnn = why;
        }
        refuse(settings.method, "a method that supports this model and GPU; cuDNN's reason: " + why_not_cudnn,
               "use auto, flash or plain");
    }
    AttentionPlan described(AttentionPlan plan, const AttentionShape& shape, const std::string& times) const {
        using enum AttentionMethod;
        plan.text = plan.method == cudnn   ? "cuDNN " + cudnn_version() + " flash attention"
                    : plan.method == flash ? "flash (mma.sync)"
                                           : std::string(plain_name(methods));
        if (plan.method == cudnn && plan.backward)
            plan.text += plan.deterministic ? ", deterministic" : ", not deterministic";
        if (methods.size() > 1 && settings.method == automatic) plan.text += ", selected by auto";
        const bool has_cudnn = std::ranges::count(methods, cudnn) > 0;
        if (shape.documents && settings.method == automatic && has_cudnn && plan.method == flash)
            plan.why_not_cudnn = kWholeRows;
        if (!times.empty()) plan.text += " (" + times + ")";
        if (!plan.why_not_cudnn.empty()) plan.text += "; not cuDNN: " + plan.why_not_cudnn;
        return plan;
    }
    const AttentionPlan& plan(DType dtype, const AttentionShape& shape, bool backward) {
        auto known = plans.find({dtype, shape});
        if (known == plans.end() || (backward && !known->second.backward))
            known = plans.insert_or_assign({dtype, shape}, decide(candidates(dtype, shape, backward), shape)).first;
        return known->second;
    }

    template <class T>
    void forward(const AttentionPlan& plan, const AttentionForward<T>& op, StreamRef stream) {
        if constexpr (std::is_same_v<T, bf16>) {
            if (plan.method == AttentionMethod::cudnn)
                return check_attention(op), cudnn.forward(op, plan.forward_plan, stream);
            if (plan.method == AttentionMethod::flash) return flash_attention_forward(op, stream);
        }
        attention_forward(op, stream);
    }
    template <class T>
    void backward(const AttentionPlan& plan, const AttentionBackward<T>& op, StreamRef stream) {
        if constexpr (std::is_same_v<T, bf16>) {
            if (plan.method == AttentionMethod::cudnn)
                return check_attention(op), cudnn.backward(op, backward_pass(plan.deterministic), plan.backward_plan,
                                                           stream);
            if (plan.method == AttentionMethod::flash) return flash_attention_backward(op, stream);
        }
        attention_backward(op, stream);
    }

    // Times every supported candidate. Does nothing in fp32, which has only one.
    void choose(DType dtype, const AttentionShape& shape, bool backward, StreamRef stream) {
        if (!settings.tuned || !settings.tuned->timing || dtype != DType::bf16) return;
        std::vector<AttentionPlan> supported;
        try {
            supported = candidates(dtype, shape, backward);
        } catch (const Error&) {  // plan() throws it, on all ranks
            return;
        }
        if (chosen(supported, shape)) return;
        std::string refused;
        std::erase_if(supported, [&](AttentionPlan& candidate) {
            const std::string why = refusal(candidate, shape);
            const std::string line = "; not " + name_of(candidate.method) + ": " + why;  // once for all its plans
            if (!why.empty() && refused.find(line) == refused.npos) refused += line;
            return !why.empty();
        });
        if (supported.size() < 2) return;
        try {
            time(supported, shape, refused, stream);
        } catch (const Error& error) {
            if (!can_run(stream)) throw;
            settings.tuned->note(key(shape, backward) + ": uses the first supported method; " + error.what());
        }
        cudnn.free_workspace();
        plans.clear();
    }
    // Forward and backward pass one after the other, as in training. Throws Error if memory is insufficient.
    void time(const std::vector<AttentionPlan>& candidates, const AttentionShape& shape, const std::string& refused,
              StreamRef stream) {
        const bool both = candidates.front().backward;
        const std::size_t rows = shape.rows(), elements = shape.elements();
        const device::Array<bf16> qkv(3 * elements), out(elements), dout(both ? elements : 0),
            dqkv(both ? 3 * elements : 0);
        const device::Array<float> logsumexp(rows), delta(both ? rows : 0);
        fill(qkv.span(), stream);
        fill(dout.span(), stream);
        const auto name = [&](int i) {
            return "attention " + key(shape, both) + ": " + candidates[std::size_t(i)].name();
        };
        const auto run = [&](int i) {
            const AttentionPlan& candidate = candidates[std::size_t(i)];
            forward<bf16>(candidate, {out.span(), logsumexp.span(), qkv.span(), shape}, stream);
            if (both)
                backward<bf16>(candidate, {dqkv.span(), delta.span(), dout.span(), qkv.span(), out.span(),
                                           logsumexp.span(), shape}, stream);
        };
        Timing timing = time_candidates(
            {int(candidates.size()), name, run, std::exchange(settings.tuned->load_seconds, 0.0)},
            settings.tuned->cache_bytes, stream);
        if (timing.ranking.empty()) throw Error("every attention method failed" + timing.notes, Blame::runtime);
        const auto repeats = [&](int i) {
            const AttentionPlan& candidate = candidates[std::size_t(i)];
            if (candidate.method != AttentionMethod::cudnn || !candidate.deterministic || !both) return true;
            std::vector<bf16> results[2];
            for (std::vector<bf16>& result : results) run(i), result = dqkv.download(stream);
            return std::memcmp(results[0].data(), results[1].data(), dqkv.size() * sizeof(bf16)) == 0;
        };
        const int fastest = fastest_reproducible(timing, repeats);
        if (fastest < 0) throw Error("no attention method gives the same bits again" + timing.notes, Blame::runtime);
        std::map<std::pair<AttentionMethod, bool>, std::size_t> best;  // the fastest of each method
        for (std::size_t i = 0; i < candidates.size(); ++i) {
            const auto entry = best.try_emplace({candidates[i].method, candidates[i].deterministic}, i).first;
            if (timing.seconds[i] < timing.seconds[entry->second]) entry->second = i;
        }
        std::string times;
        for (const auto& [method, i] : best) {
            char text[48];
            std::snprintf(text, sizeof text, " %.3f ms", 1e3 * timing.seconds[i]);
            times += (times.empty() ? "" : "; ") + candidates[i].name() + text;
        }
        settings.tuned->keep(library(), key(shape, both),
                             {candidates[std::size_t(fastest)].name(), times + timing.notes + refused,
                              timing.seconds[std::size_t(fastest)]});
    }
};

Attention::Attention(const AttentionSettings& settings) : state_(new State{settings}) {}
Attention::~Attention() = default;

void Attention::choose(DType dtype, const AttentionShape& shape, bool backward, StreamRef stream) {
    state_->choose(dtype, shape, backward, stream);
}

const AttentionPlan& Attention::plan(DType dtype, const AttentionShape& shape, bool backward) const {
    return state_->plan(dtype, shape, backward);
}

void Attention::replan() { state_->plans.clear(); }

std::string Attention::library() const { return state_->library(); }

template <class T>
void Attention::forward(const AttentionForward<T>& op, StreamRef stream) {
    state_->forward(plan(dtype_of<T>, op.shape, false), op, stream);
}

template <class T>
void Attention::backward(const AttentionBackward<T>& op, StreamRef stream) {
    state_->backward(plan(dtype_of<T>, op.shape, true), op, stream);
}

template void Attention::forward(const AttentionForward<float>&, StreamRef);
template void Attention::forward(const AttentionForward<bf16>&, StreamRef);
template void Attention::backward(const AttentionBackward<float>&, StreamRef);
template void Attention::backward(const AttentionBackward<bf16>&, StreamRef);

}  // namespace kernels
