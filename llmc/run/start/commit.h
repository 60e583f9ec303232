// commit.h - the git commit of the sources of this build
#pragma once

namespace llmc {

// With "-dirty" if the sources were changed; null without git.
const char* commit();

}  // namespace llmc
