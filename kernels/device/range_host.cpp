// range_host.cpp - range.h on a CPU
#include "kernels/device/range.h"

namespace device {

Range::Range(const char*) {}
Range::~Range() = default;

}  // namespace device
