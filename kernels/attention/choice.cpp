// choice.cpp - which implementation computes attention: class Attention of attention.h
#include <algorithm>
#include <map>
#include <type_traits>

#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/build.h"
#include "kernels/attention/check.h"

namespace kernels {
namespace {

// cuDNN's deterministic backward pass on Hopper keeps seq_len^2 numbers a head: beyond this, flash attention's none are
// worth more than its speed.
constexpr std::size_t kAutomaticWorkspace = std::size_t(4) << 30;

std::string name_of(AttentionMethod method) {
    return std::string(std::ranges::find(kAttentionMethods, method,
                                         [](const auto& entry) { return entry.second; })->first);
}

[[noreturn]] void refuse(AttentionMethod asked, std::string_view expected, std::string_view mend) {
    fail("--attention", '"' + name_of(asked) + '"', expected, mend);
}

bool flash_takes(const AttentionBuild& build, int head_size) {
    return build.flash_supports && build.flash_supports(head_size);
}

std::string flash_head_sizes(const AttentionBuild& build) {
    std::string list;
    for (int size = 1; size <= 256; ++size)
        if (flash_takes(build, size)) list += (list.empty() ? "" : ", ") + std::to_string(size);
    return list;
}

}  // namespace

std::vector<AttentionMethod> attention_candidates(AttentionMethod asked, const AttentionBuild& build, DType dtype,
                                                  int head_size) {
    using enum AttentionMethod;
    if (asked == automatic) {
        std::vector<AttentionMethod> candidates;
        if (build.cudnn && dtype == DType::bf16) candidates.push_back(cudnn);
        if (flash_takes(build, head_size) && dtype == DType::bf16) candidates.push_back(flash);
        candidates.push_back(plain);
        return candidates;
    }
    if (!build.choice)
        refuse(asked, "auto: on a CPU there is one implementation, " + std::string(build.plain),
               "leave the flag out; on a GPU build with make DEVICE=cuda");
    if (asked == cudnn && !build.cudnn)
        refuse(asked, "auto, flash or plain: this build has no cuDNN",
               "build where make finds cudnn.h, libcudnn and cuDNN's frontend (README)");
    if (asked != plain && dtype != DType::bf16)
        refuse(asked, "auto or plain: " + name_of(asked) + " computes in bf16 only", "give --dtype bf16");
    if (asked == flash && !flash_takes(build, head_size))
        refuse(asked,
               "auto or plain: the model's heads have " + std::to_string(head_size) + " channels, flash takes " +
                   flash_head_sizes(build),
               "leave the flag out, or choose another number of heads");
    return {asked};
}

struct Attention::State {
    AttentionOptions options;
    AttentionBuild build = attention_build();
    CudnnAttention cudnn;
    struct Decision {
        bool backward;
        AttentionPlan plan;
    };
    std::map<std::pair<DType, AttentionShape>, Decision> decisions;

    // Empty if cuDNN computes it, else why not.
    std::string cudnn_refusal(const AttentionProblem& problem) {
        const std::string why = cudnn.refusal(problem.shape, problem.backward);
        if (!why.empty() || options.method == AttentionMethod::cudnn) return why;
        const std::size_t bytes = cudnn.workspace_bytes(problem.shape, problem.backward);
        if (bytes <= kAutomaticWorkspace) return "";
        return "its workspace would take " + std::to_string(bytes >> 20) + " MiB, and auto allows " +
               std::to_string(kAutomaticWorkspace >> 20);
    }

    AttentionPlan decide(const AttentionProblem& problem) {
        AttentionPlan plan;
        for (AttentionMethod method :
             attention_candidates(options.method, build, problem.dtype, problem.shape.head_size)) {
            plan.method = method;
            if (method != AttentionMethod::cudnn) break;
            plan.passed_over = cudnn_refusal(problem);
            if (plan.passed_over.empty()) {
                plan.workspace_bytes = cudnn.workspace_bytes(problem.shape, problem.backward);
                break;
            }
            if (options.method == AttentionMethod::cudnn)
                refuse(method, "a method that can do this model and GPU; cuDNN refuses: " + plan.passed_over,
                       "use auto, flash or plain");
        }
        return plan;
    }

    const AttentionPlan& plan(const AttentionProblem& problem) {
        const auto key = std::pair(problem.dtype, problem.shape);
        auto known = decisions.find(key);
        if (known == decisions.end() || (problem.backward && !known->second.backward))
            known = decisions.insert_or_assign(key, Decision{problem.backward, decide(problem)}).first;
        return known->second.plan;
    }
};

Attention::Attention(const AttentionOptions& options) : state_(new State{options}) {}
Attention::~Attention() = default;
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;

const AttentionPlan& Attention::plan(const AttentionProblem& problem) const { return state_->plan(problem); }

std::string Attention::describe(const AttentionProblem& problem) const {
    const AttentionPlan& plan = state_->plan(problem);
    std::string text = plan.method == AttentionMethod::cudnn   ? "cuDNN " + cudnn_version() + " flash attention"
                       : plan.method == AttentionMethod::flash ? "flash (mma.sync)"
                                                               : std::string(state_->build.plain);
    if (state_->build.choice && state_->options.method == AttentionMethod::automatic) text += ", chosen by auto";
    return plan.passed_over.empty() ? text : text + "; not cuDNN: " + plan.passed_over;
}

template <class T>
void Attention::forward(const AttentionForward<T>& op, StreamRef stream) {
    const AttentionMethod method = plan({dtype_of<T>, {op.batch, op.seq_len, op.heads, op.head_size}, false}).method;
    if constexpr (std::is_same_v<T, bf16>) {
        if (method == AttentionMethod::cudnn) return check_attention(op), state_->cudnn.forward(op, stream);
        if (method == AttentionMethod::flash) return state_->build.flash_forward(op, stream);
    }
    attention_forward(op, stream);
}

template <class T>
void Attention::backward(const AttentionBackward<T>& op, StreamRef stream) {
    const AttentionMethod method = plan({dtype_of<T>, {op.batch, op.seq_len, op.heads, op.head_size}, true}).method;
    if constexpr (std::is_same_v<T, bf16>) {
        if (method == AttentionMethod::cudnn) return check_attention(op), state_->cudnn.backward(op, stream);
        if (method == AttentionMethod::flash) return state_->build.flash_backward(op, stream);
    }
    attention_backward(op, stream);
}

template void Attention::forward(const AttentionForward<float>&, StreamRef);
template void Attention::forward(const AttentionForward<bf16>&, StreamRef);
template void Attention::backward(const AttentionBackward<float>&, StreamRef);
template void Attention::backward(const AttentionBackward<bf16>&, StreamRef);

}  // namespace kernels
