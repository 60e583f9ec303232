// version.cpp - properties of the build, most of them from the compiler
#include "llmc/run/start/version.h"

#include <nlohmann/json.hpp>

#include "kernels/device/device.h"
#include "llmc/base/file_status.h"
#include "llmc/base/fingerprint.h"

namespace llmc {
namespace {

constexpr const char* kVersion = "0.3.0";

// Clang's __VERSION__ names the compiler and its distributor; GCC's is a number.
#if defined(__clang__)
constexpr const char* kCompiler = __VERSION__;
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

const char* instruction_set() {
#if defined(__AVX512BF16__)
    return "AVX-512 with BF16";
#elif defined(__AVX512F__)
    return "AVX-512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__ARM_FEATURE_SVE2)
    return "SVE2";
#elif defined(__ARM_FEATURE_SVE)
    return "SVE";
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return "NEON with BF16";
#elif defined(__ARM_NEON)
    return "NEON";
#else
    return "the architecture's baseline";
#endif
}

}  // namespace

nlohmann::ordered_json version_json() {
    nlohmann::ordered_json json = {{"train_gpt2", kVersion}, {"commit", nullptr},
                                   {"compiler", kCompiler},
                                   {"instructions", instruction_set()}};
    if (!build_commit().empty()) json["commit"] = build_commit();
    json["device"] = device::is_gpu() ? "cuda" : "cpu";
    for (const auto& [library, version] : library_versions()) json[library] = version;
    // distinguishes builds of the same version
    const char* const program = "/proc/self/exe";  // missing without /proc
    json["build"] = is_present(program) ? fingerprint_of_file(program).xxh3 : "n/a";
    return json;
}

std::string version_text(const nlohmann::ordered_json& version) {
    std::string text;
    for (const auto& [key, value] : version.items())
        if (!value.is_null()) text += (text.empty() ? "" : ", ") + key + ' ' + value.get<std::string>();
    return text + '\n';
}

std::string version_text() { return version_text(version_json()); }

}  // namespace llmc
