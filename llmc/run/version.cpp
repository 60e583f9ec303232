// version.cpp - the facts of a build, most of them from the compiler
#include "llmc/run/version.h"

#include "kernels/attention/attention_cudnn.h"
#include "llmc/base/fingerprint.h"
#include "llmc/base/mapped_file.h"

#if defined(TRAIN_GPT2_CUDA)
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#else
#include <dnnl_version.h>
#endif

namespace llmc {
namespace {

constexpr const char* kVersion = "0.1.0";

std::string numbers(int major, int minor, int patch) {
    return std::to_string(major) + '.' + std::to_string(minor) + '.' + std::to_string(patch);
}

// The Makefile gives it to this file alone, so that a commit compiles nothing else anew.
nlohmann::ordered_json commit() {
#if defined(TRAIN_GPT2_COMMIT)
    return TRAIN_GPT2_COMMIT;
#else
    return nullptr;
#endif
}

const char* instruction_set() {
#if defined(__AVX512BF16__)
    return "AVX-512 with BF16";
#elif defined(__AVX512F__)
    return "AVX-512";
#elif defined(__AVX2__)
    return "AVX2";
#else
    return "the architecture's baseline";
#endif
}

}  // namespace

nlohmann::ordered_json version_json() {
    nlohmann::ordered_json json = {{"train_gpt2", kVersion}, {"commit", commit()},
                                   {"compiler", std::string("g++ ") + __VERSION__},
                                   {"instructions", instruction_set()}};
#if defined(TRAIN_GPT2_CUDA)
    json["device"] = "cuda";
    json["cuda"] = numbers(CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100, 0);
    json["cublasLt"] = numbers(CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH);
    json["cuDNN"] = kernels::cudnn_version().empty() ? "no" : kernels::cudnn_version();
#else
    json["device"] = "cpu";
    json["oneDNN"] = numbers(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
#endif
    // two builds of one version differ in it
    json["build"] = fingerprint(MappedFile("/proc/self/exe", "program").bytes());
    return json;
}

std::string version_text(const nlohmann::ordered_json& version) {
    std::string text;
    for (const auto& [key, value] : version.items())
        if (!value.is_null()) text += (text.empty() ? "" : ", ") + key + ' ' + value.get<std::string>();
    return text + '\n';
}

}  // namespace llmc
