// onednn.cpp - the oneDNN features that train_gpt2 uses; scripts/install_deps.sh compiles it
//
// library:  oneDNN
// expected: version 2.6
// packages: libdnnl-dev
// version:  DNNL_VERSION_MAJOR.DNNL_VERSION_MINOR.DNNL_VERSION_PATCH
// link:     -ldnnl
#include <dnnl_version.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include "kernels/matmul/onednn_operation.h"

int main() {
    using dnnl::memory;
    const memory::desc matrix({8, 8}, memory::data_type::f32, memory::dims{8, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
    const kernels::onednn::Operation operation(matrix, matrix, memory::desc(), matrix);
    auto found = operation.first(dnnl::engine(dnnl::engine::kind::cpu, 0), attributes);
    float one[64] = {};
    const dnnl_status_t status = dnnl_sgemm('N', 'T', 8, 8, 8, 1, one, 8, one, 8, 0, one, 8);
    if (dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_amx) return 1;
    return found.next_impl() && *dnnl_status2str(status);
}
