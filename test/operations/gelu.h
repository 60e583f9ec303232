// gelu.h - the formula of GELU and its derivative, also used for linear layers with fused GELU
#pragma once
#include "test/operations/rounded.h"

namespace operations {

// (1 + tanh u) / 2 as 1 / (1 + exp(-2u)); float's exponents end at 88.
inline constexpr double kTwiceRootTwoOverPi = 1.5957691216057308, kCubic = 0.044715;

template <class N> N gelu_gate(N x) {
    const N argument = -N(kTwiceRootTwoOverPi) * (x + N(kCubic) * x * x * x);
    return N(1) / (N(1) + exp(argument < N(88) ? argument : N(88)));
}
template <class N> N gelu(N x) { return x * gelu_gate(x); }
template <class N> N gelu_slope(N x) {
    const N gate = gelu_gate(x);
    const N rest = N(1 - kUnit / 2) < gate ? N(0) : N(1) - gate;  // in float 1 + exp is exactly 1 from here on
    return gate + x * gate * rest * (N(kTwiceRootTwoOverPi) * (N(1) + N(3 * kCubic) * x * x));
}

}  // namespace operations
