// model_weights.h - a model's weights on the device: the working parameters for computation, and the fp32 master
// weights that the optimizer updates
//
//   fp32  one array is both
//   bf16  the working parameters are the rounded master weights; at ZeRO stages 1 and 2, and if matrices have one owner
//         each, a rank stores the master weights of what it owns only (gradient_buckets.h)
//
// Working parameters that not all ranks own are gathered, bucket by bucket, during the next forward pass.
#pragma once
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/device/memory.h"
#include "llmc/comm/communicator.h"
#include "llmc/model/context.h"
#include "llmc/model/gradient_buckets.h"
#include "llmc/weights/parameters.h"

namespace llmc {

// The number of master weights on this rank, including alignment gaps.
std::int64_t master_weight_elements(const ParameterTable& table, kernels::DType dtype, const Sharding& sharding);

class ModelWeights {
public:
    const ParameterTable& table() const { return table_; }
    kernels::DType dtype() const { return dtype_; }
    // In fp32 all, flat; in bf16 what this rank owns, in that order (gradient_buckets.h), flat if that is one range.
    std::span<float> master_weights() const { return master_weights_.span(); }
    bool master_weights_are_flat() const { return dtype_ != kernels::DType::bf16 || buckets_.owns_all(); }

    // The working parameters, flat, or of one tensor; Element is the type of dtype(). In fp32 the master weights.
    template <class Element> std::span<Element> parameters() const {
        if constexpr (std::is_same_v<Element, float>) return master_weights_.span();
        else return rounded_.span();
    }
    template <class Element> std::span<const Element> parameter(int tensor) const {
        return table_.view(parameters<Element>(), tensor);
    }

    // Sets master weights and working parameters from a host array of table().elements() floats; waits.
    void load(std::span<const float> host);
    // Copies the master weights of all ranks to host memory of rank 0, table().elements() floats. Every rank calls it,
    // the others with an empty span. Waits.
    void copy_master_weights_to_host(std::span<float> flat) const;
    // The same of other values: all, flat, or those of what this rank owns, in that order.
    void copy_to_host(std::span<const float> values, bool are_flat, std::span<float> flat) const;

    // The group up to `event` gathers the working parameters of a bucket; wait_for_parameters() waits for it.
    void parameters_arrive(int bucket, CommEvent event) { arriving_[std::size_t(bucket)] = event; }
    void wait_for_parameters() const {
        for (int bucket = 0; bucket < buckets_.size(); ++bucket) wait_for_parameters(bucket);
    }
    void wait_for_parameters(int bucket) const {
        context_.worker->wait(context_.stream, arriving_[std::size_t(bucket)]);
    }

protected:
    // The context must outlive it. Weights are undefined until load().
    ModelWeights(const ParameterTable& table, kernels::DType dtype, const Sharding& sharding, Context& context);
    ~ModelWeights();  // waits for gathers in progress

    const GradientBuckets& buckets() const { return buckets_; }

    Context& context_;

private:
    // Of the communicator, if it gathers them.
    template <class T> device::Array<T> parameter_memory(std::size_t size, bool are_parameters) const;

    kernels::DType dtype_;
    ParameterTable table_;
    GradientBuckets buckets_;
    std::vector<CommEvent> arriving_;  // one per bucket
    device::Array<float> master_weights_;
    device::Array<kernels::bf16> rounded_;
};

}  // namespace llmc
