// check.h - input checks of every implementation of matmul.h: shapes and sizes of spans
#pragma once
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/matmul/matmul.h"

namespace kernels::matmul_check {

template <class T>
void shape(int rows, int in_channels, int out_channels) {
    require(rows > 0, "rows of a matrix product", rows, "at least 1");
    require_multiple("in_channels of a matrix product", in_channels, 16 / sizeof(T));
    require_multiple("out_channels of a matrix product", out_channels, 16 / sizeof(T));
}

template <class Array> void room(std::string_view name, const Array& array, std::size_t rows, std::size_t columns) {
    require_size(name, array, rows * columns, std::to_string(rows) + " * " + std::to_string(columns));
}
template <class Array>
void room_if_any(std::string_view name, const Array& array, std::size_t rows, std::size_t columns) {
    if (!array.empty()) room(name, array, rows, columns);
}

template <class T>
void check(const LinearForward<T>& op) {
    shape<T>(op.rows, op.in_channels, op.out_channels);
    room("out", op.out, op.rows, op.out_channels);
    room_if_any("pre", op.pre, op.rows, op.out_channels);
    room("in", op.in, op.rows, op.in_channels);
    room("weight", op.weight, op.out_channels, op.in_channels);
    room_if_any("bias", op.bias, 1, op.out_channels);
}

template <class T>
void check(const LinearLayerNormForward<T>& op) {
    check(op.linear);
    require(op.norm.right.data() == op.linear.out.data(), "`right` after a product", "another tensor", "its out");
    room("left", op.norm.left, op.linear.rows, op.linear.out_channels);
    room("residual", op.norm.residual, op.linear.rows, op.linear.out_channels);
}

template <class T>
void check(const LinearBackwardInput<T>& op) {
    shape<T>(op.rows, op.in_channels, op.out_channels);
    room("din", op.din, op.rows, op.in_channels);
    room("dout", op.dout, op.rows, op.out_channels);
    room("weight", op.weight, op.out_channels, op.in_channels);
    room_if_any("pre", op.pre, op.rows, op.in_channels);
    room_if_any("dbias", op.dbias, 1, op.in_channels);
}

template <class T>
void check(const LinearBackwardWeight<T>& op) {
    shape<T>(op.rows, op.in_channels, op.out_channels);
    room("dweight", op.dweight, op.out_channels, op.in_channels);
    room("dout", op.dout, op.rows, op.out_channels);
    room("in", op.in, op.rows, op.in_channels);
}

template <class T>
void check(const ScaledProduct<T>& op) {
    require(op.batch > 0, "batch of a matrix product", op.batch, "at least 1");
    require_multiple("m of a matrix product", op.m, 16 / sizeof(T));
    require_multiple("n of a matrix product", op.n, 16 / sizeof(T));
    require_multiple("k of a matrix product", op.k, 16 / sizeof(T));
    const auto rows = [&](int of_one) { return std::size_t(op.batch) * std::size_t(of_one); };
    room("out", op.out, rows(op.m), std::size_t(op.n));
    room("left", op.left, rows(op.m), std::size_t(op.k));
    room("right", op.right, rows(op.k), std::size_t(op.n));
    if (op.beta != 0) room("addend", op.addend, rows(op.m), std::size_t(op.n));
    const auto is_out = [&](std::span<const T> factor) { return factor.data() == op.out.data(); };
    require(!is_out(op.left) && !is_out(op.right), "out of a matrix product", "one of its factors", "other memory");
}

template <class T>
void check(const SymmetricProduct<T>& op) {
    check(op.whole());
    require(op.beta == 0 || op.addend.data() != op.out.data(), "the addend of a symmetric product", "its out",
            "other memory");
}

template <class Left, class Out>
void check(const Fp8Product<Left, Out>& op) {
    require(op.m > 0, "m of an fp8 product", op.m, "at least 1");
    require_multiple("n of an fp8 product", op.n, 16);
    require_multiple("k of an fp8 product", op.k, 16);
    room("out", op.out, std::size_t(op.m), std::size_t(op.n));
    room("left", op.left, std::size_t(op.m), std::size_t(op.k));
    room("right", op.right, std::size_t(op.n), std::size_t(op.k));
}

}  // namespace kernels::matmul_check
