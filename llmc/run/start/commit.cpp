// commit.cpp - alone in its file, to which the Makefile gives it, so that a commit compiles nothing else anew
#include "llmc/run/commit.h"

namespace llmc {

const char* commit() {
#if defined(TRAIN_GPT2_COMMIT)
    return TRAIN_GPT2_COMMIT;
#else
    return nullptr;
#endif
}

}  // namespace llmc
