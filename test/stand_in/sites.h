// sites.h - call sites: the call stack in the program at a call of a library function
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace stand_in {

// Return addresses within the program itself, innermost first.
std::vector<const void*> frames_here();
// "llmc::CommStream::point <- llmc::Model::forward <- main", at most four functions.
std::string places(const std::vector<const void*>& frames);

std::string describe_site(std::uint32_t site);

}  // namespace stand_in
