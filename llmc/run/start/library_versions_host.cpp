// library_versions_host.cpp - library_versions.h for a CPU build
#include <dnnl_version.h>

#include "llmc/run/start/library_versions.h"

namespace llmc {

std::vector<std::pair<std::string, std::string>> library_versions() {
    return {{"oneDNN", dotted_version(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH)}};
}

}  // namespace llmc
