// commit.h - the commit of the sources that this build was made of
#pragma once

namespace llmc {

// As git named it when this was built, "-dirty" where the sources had changed since; null without git.
const char* commit();

}  // namespace llmc
