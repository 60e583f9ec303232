// decode.h - decodes the declarations of a module to instructions for warps
#pragma once
#include "test/stand_in/ptx/function.h"
#include "test/stand_in/ptx/text.h"

namespace stand_in::ptx {

Function decode(const Module& module, const FunctionText& text);

}  // namespace stand_in::ptx
