// attention_cudnn.cpp - attention by cuDNN's flash attention kernels: one graph per pass and shape, with the plans
// of cuDNN's heuristics (cudnn_graph.h)
#include <map>
#include <unordered_map>

#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/cudnn_graph.h"
#include "kernels/device/checked_cudnn.h"
#include "kernels/device/memory.h"

namespace kernels {
namespace {

namespace fe = cudnn_frontend;

constexpr int kList = -1;  // in place of a plan's number: the list of plans
struct Built {
    std::string refusal;
    std::int64_t workspace_bytes = 0;
};

// Offset of an operand in its buffer.
template <class Element>
std::pair<std::int64_t, void*> address(CudnnOperand operand, const AttentionShape& shape, std::span<Element> buffer) {
    return {std::int64_t(operand),
            const_cast<std::remove_const_t<Element>*>(buffer.data() + cudnn_layout(operand, shape).first)};
}

using PassKey = std::pair<CudnnPass, AttentionShape>;

}  // namespace

struct CudnnAttention::State {
    device::CudnnHandle handle;
    std::map<PassKey, fe::graph::Graph> graphs;
    std::map<std::pair<PassKey, int>, Built> plans;
    device::Workspace workspace;

    const Built& build(const PassKey& key, int plan) {
        fe::graph::Graph& graph = graphs[key];
        const auto [entry, is_new] = plans.try_emplace({key, plan});
        Built& built = entry->second;
        if (is_new) try {
            if (plan != kList) {
                built.refusal = build(key, kList).refusal;
                if (built.refusal.empty()) CHECKED(cudnn_graph::build_plan(graph, plan, built.workspace_bytes));
                return built;
            }
            handle.get();  // before the graph, so that without a GPU this is the reason
            cudnn_graph::describe(graph, key.first, key.second);
            CHECKED(graph.validate());
            CHECKED(graph.build_operation_graph(handle.get()));
            CHECKED(cudnn_graph::list_plans(graph, key.first));
        } catch (const std::exception& error) {  // this code's, or one that the frontend does not catch
            built.refusal = device::on_one_line(error.what());
        }
        return built;
    }

    void run(const PassKey& key, int plan, std::unordered_map<std::int64_t, void*> addresses, StreamRef stream) {
        const auto known = plans.find({key, plan});
        if (known == plans.end())
            fail("a shape given to cuDNN attention",
                 "batch " + std::to_string(key.second.batch) + ", seq_len " + std::to_string(key.second.seq_len),
                 "one planned before", "", Blame::runtime);
        CHECKED(cudnnSetStream(handle.get(), stream));
        void* const memory = workspace.at_least(std::size_t(known->second.workspace_bytes));
        CHECKED(graphs[key].execute_plan_at_index(handle.get(), addresses, memory, plan));
    }
};

CudnnAttention::CudnnAttention() : state_(new State) {}
CudnnAttention::~CudnnAttention() = default;

std::string cudnn_version() {
    const std::size_t version = cudnnGetVersion();  // 9.19.0 is 91900
    return std::to_string(version / 10000) + '.' + std::to_string(version / 100 % 100) + '.' +
           std::to_string(version % 100);
}

int CudnnAttention::plans(const AttentionShape& shape, CudnnPass pass) {
    const bool listed = state_->build({pass, shape}, kList).refusal.empty();
    return listed ? int(state_->graphs[{pass, shape}].get_execution_plan_count()) : 1;
}

std::string CudnnAttention::refusal(const AttentionShape& shape, CudnnPass pass, int plan) {
    return state_->build({pass, shape}, plan).refusal;
}

std::size_t CudnnAttention::workspace_bytes(const AttentionShape& shape, CudnnPass pass, int plan) const {
    return std::size_t(state_->plans.at({{pass, shape}, plan}).workspace_bytes);
}

void CudnnAttention::free_workspace() { state_->workspace = device::Workspace(); }

void CudnnAttention::forward(const AttentionForward<bf16>& op, int plan, StreamRef stream) {
    using enum CudnnOperand;
    const AttentionShape& shape = op.shape;
    state_->run({CudnnPass::forward, shape}, plan,
                {address(q, shape, op.qkv), address(k, shape, op.qkv), address(v, shape, op.qkv),
                 address(out, shape, op.out), address(stats, shape, op.logsumexp)},
                stream);
}

void CudnnAttention::backward(const AttentionBackward<bf16>& op, CudnnPass pass, int plan, StreamRef stream) {
    using enum CudnnOperand;
    const AttentionShape& shape = op.shape;
    state_->run({pass, shape}, plan,
                {address(q, shape, op.qkv), address(k, shape, op.qkv), address(v, shape, op.qkv),
                 address(out, shape, op.out), address(dout, shape, op.dout), address(stats, shape, op.logsumexp),
                 address(dq, shape, op.dqkv), address(dk, shape, op.dqkv), address(dv, shape, op.dqkv)},
                stream);
}

}  // namespace kernels
