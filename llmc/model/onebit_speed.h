// onebit_speed.h - whether compression pays: the extra compute time of a compressed step on this machine, and the link
// speed at which it equals the time saved
#pragma once
#include "llmc/model/onebit_settings.h"

namespace llmc {

struct Context;

// Extra compute seconds of a step with the compressed update of `elements`, compared with AdamW's: compression, this
// rank's part of the sums, and the sketch. Measured on half of the elements, at most 2^22, the fastest of three of
// each; the memory is freed, and is less than the optimizer and the gradients will use. Waits for the device.
double measure_compression(std::int64_t elements, int ranks, Context& context);

// The link speed, in bits per second that a rank sends, at which the full exchange takes as long as compression plus
// the exchange with 1 bit per element; on slower links compression pays. Ignores overlap with the backward pass.
// `bytes`: of an element in the full exchange.
double break_even_bits_a_second(std::int64_t elements, int ranks, int bytes, double compression_seconds);

}  // namespace llmc
