// layernorm.h - a row of LayerNorm, for its own operation and for products that it follows
#pragma once
#include <cmath>
#include <cstddef>

namespace operations {

template <class N, class In, class Out, class Statistic, class Parameter>
void normalise(int channels, In x, Out normed, Statistic mean, Statistic rstd, Parameter weight, Parameter bias,
               std::size_t row) {
    const std::size_t first = row * channels;
    N sum = 0, squares = 0;
    for (int c = 0; c < channels; ++c) sum += x[first + c];
    const N average = sum / N(channels);
    for (int c = 0; c < channels; ++c) squares += (N(x[first + c]) - average) * (N(x[first + c]) - average);
    const N scale = N(1) / sqrt(squares / N(channels) + N(1e-5));
    for (int c = 0; c < channels; ++c)
        normed[first + c] = (N(x[first + c]) - average) * scale * N(weight[c]) + N(bias[c]);
    mean[row] = average;
    rstd[row] = scale;
}

}  // namespace operations
