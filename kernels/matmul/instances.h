// instances.h - the instances of Matmul's members, included at the end of the file that implements them
namespace kernels {

template void Matmul::forward(const LinearForward<float>&, StreamRef);
template void Matmul::forward(const LinearForward<bf16>&, StreamRef);
template void Matmul::forward_layernorm(const LinearLayerNormForward<float>&, StreamRef);
template void Matmul::forward_layernorm(const LinearLayerNormForward<bf16>&, StreamRef);
template void Matmul::backward_input(const LinearBackwardInput<float>&, StreamRef);
template void Matmul::backward_input(const LinearBackwardInput<bf16>&, StreamRef);
template void Matmul::backward_weight(const LinearBackwardWeight<float>&, StreamRef);
template void Matmul::backward_weight(const LinearBackwardWeight<bf16>&, StreamRef);
template void Matmul::multiply(const ScaledProduct<float>&, StreamRef);
template void Matmul::multiply(const ScaledProduct<bf16>&, StreamRef);
template void Matmul::multiply(const SymmetricProduct<float>&, StreamRef);
template void Matmul::multiply(const SymmetricProduct<bf16>&, StreamRef);
template void Matmul::multiply(const Fp8Product<e4m3, bf16>&, StreamRef);
template void Matmul::multiply(const Fp8Product<e5m2, bf16>&, StreamRef);
template void Matmul::multiply(const Fp8Product<e5m2, float>&, StreamRef);

}  // namespace kernels
