// limits_host.cpp - limits.h for the host executor
#include "kernels/device/limits_host.h"

namespace device {
namespace {

thread_local constinit Limits in_use = kExecutorLimits;

}  // namespace

Limits limits() { return in_use; }

UseLimits::UseLimits(const Limits& limits) : before_(in_use) { in_use = limits; }
UseLimits::~UseLimits() { in_use = before_; }

}  // namespace device
