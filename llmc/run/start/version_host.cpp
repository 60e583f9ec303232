// version_host.cpp - commit and libraries of a CPU build; the Makefile defines the commit
#include <dnnl_version.h>

#include "llmc/run/start/version.h"

namespace llmc {

std::string build_commit() { return TRAIN_GPT2_COMMIT; }

std::vector<std::pair<std::string, std::string>> library_versions() {
    return {{"oneDNN", dotted_version(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH)}};
}

}  // namespace llmc
