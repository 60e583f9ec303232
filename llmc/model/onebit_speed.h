// onebit_speed.h - whether compression pays: how much longer a compressed step computes on this machine, and the link
// on which that is what it saves
#pragma once
#include "llmc/model/onebit_settings.h"

namespace llmc {

struct Context;

// Seconds that a step with the compressed update of `elements` computes longer than one with AdamW's: compression, this
// rank's part of the sums, and the sketch. Measured on half of them, at most 2^22, whose memory is given back and is
// less than what the optimizer and the gradients will take; the fastest of three of each. Waits for the device.
double measure_compression(std::int64_t elements, int ranks, Context& context);

// Bits a second that a rank sends on a link on which the exchange in full takes as long as the one at a bit an element
// with its compression; on slower ones compression pays. Counts nothing of what runs beside the backward pass.
// `bytes`: of an element in full.
double break_even_bits_a_second(std::int64_t elements, int ranks, int bytes, double compression_seconds);

}  // namespace llmc
