// commit.cpp - in its own file, for which the Makefile defines the commit, so that a new commit recompiles only this
#include "llmc/run/start/commit.h"

namespace llmc {

const char* commit() {
#if defined(TRAIN_GPT2_COMMIT)
    return TRAIN_GPT2_COMMIT;
#else
    return nullptr;
#endif
}

}  // namespace llmc
