// onebit_speed.h - whether compression pays: how long this machine takes for it, and the link that is as fast
#pragma once
#include "llmc/model/onebit_settings.h"

namespace llmc {

struct Context;

// Seconds that a rank takes to compress `elements`, serve its part of those of all ranks and keep its errors: measured
// on up to 2^22 elements, whose memory is given back; the fastest of three. Waits for the device.
double measure_compression(std::int64_t elements, int ranks, Context& context);

// Bits a second that a rank sends on a link on which the exchange in full takes as long as the one at a bit an element
// with its compression; on slower ones compression pays. Counts nothing of what runs beside the backward pass.
// `bytes`: of an element in full.
double break_even_bits_a_second(std::int64_t elements, int ranks, int bytes, double compression_seconds);

}  // namespace llmc
