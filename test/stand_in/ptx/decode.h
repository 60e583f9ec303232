// decode.h - from what a module declares to what warps execute
#pragma once
#include "test/stand_in/ptx/function.h"
#include "test/stand_in/ptx/text.h"

namespace stand_in::ptx {

Function decode(const Module& module, const FunctionText& text);

}  // namespace stand_in::ptx
