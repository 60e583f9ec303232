// range_host.cpp - range.h where the device is the processor itself
#include "kernels/device/range.h"

namespace device {

Range::Range(const char*) {}
Range::~Range() = default;

}  // namespace device
