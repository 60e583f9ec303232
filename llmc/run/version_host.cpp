// version_host.cpp - library_versions() of a build for CPUs
#include <dnnl_version.h>

#include "llmc/run/version.h"

namespace llmc {

nlohmann::ordered_json library_versions() {
    return {{"oneDNN", dotted_version(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH)}};
}

}  // namespace llmc
