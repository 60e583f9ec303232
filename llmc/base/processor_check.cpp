// processor_check.cpp - exits with a message, instead of SIGILL, on a processor that lacks instructions that the
// program was built with
//
// Compiled for the baseline of the architecture (see the Makefile) and run before everything else.
#include <unistd.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <cstddef>

namespace llmc {
namespace {

// No C++ library here: the linker may take its inline functions from a file compiled for the newer processor.
struct Missing {
    char names[256] = "";
    int length = 0;
    void add(const char* name) {
        if (length < int(sizeof names) - 1) names[length++] = ' ';
        while (*name && length < int(sizeof names) - 1) names[length++] = *name++;
        names[length] = 0;
    }
};

Missing find_missing() {
    Missing missing;
#if defined(__x86_64__)
    __builtin_cpu_init();
#define NEED(name, text) \
    if (!__builtin_cpu_supports(name)) missing.add(text)
#if defined(BUILT_WITH_AVX2)
    NEED("avx2", "AVX2");
#endif
#if defined(BUILT_WITH_FMA)
    NEED("fma", "FMA");
#endif
#if defined(BUILT_WITH_BMI2)
    NEED("bmi2", "BMI2");
#endif
#if defined(BUILT_WITH_AVX512F)
    NEED("avx512f", "AVX-512F");
#endif
#if defined(BUILT_WITH_AVX512BW)
    NEED("avx512bw", "AVX-512BW");
#endif
#if defined(BUILT_WITH_AVX512VL)
    NEED("avx512vl", "AVX-512VL");
#endif
#if defined(BUILT_WITH_AVX512DQ)
    NEED("avx512dq", "AVX-512DQ");
#endif
#if defined(BUILT_WITH_AVX512VBMI2)
    NEED("avx512vbmi2", "AVX-512VBMI2");
#endif
#if defined(BUILT_WITH_AVX512VNNI)
    NEED("avx512vnni", "AVX-512VNNI");
#endif
#if defined(BUILT_WITH_AVX512BF16)
    NEED("avx512bf16", "AVX512-BF16");
#endif
#undef NEED
#elif defined(__aarch64__)
    const unsigned long capabilities = getauxval(AT_HWCAP), capabilities2 = getauxval(AT_HWCAP2);
#define NEED(has, text) \
    if (!(has)) missing.add(text)
#if defined(BUILT_WITH_ATOMICS)
    NEED(capabilities & HWCAP_ATOMICS, "LSE");
#endif
#if defined(BUILT_WITH_CRC32)
    NEED(capabilities & HWCAP_CRC32, "CRC32");
#endif
#if defined(BUILT_WITH_QRDMX)
    NEED(capabilities & HWCAP_ASIMDRDM, "RDM");
#endif
#if defined(BUILT_WITH_FP16_VECTOR_ARITHMETIC)
    NEED(capabilities & HWCAP_ASIMDHP, "FP16");
#endif
#if defined(BUILT_WITH_DOTPROD)
    NEED(capabilities & HWCAP_ASIMDDP, "DotProd");
#endif
#if defined(BUILT_WITH_COMPLEX)
    NEED(capabilities & HWCAP_FCMA, "FCMA");
#endif
#if defined(BUILT_WITH_RCPC)
    NEED(capabilities & HWCAP_LRCPC, "RCpc");
#endif
#if defined(BUILT_WITH_FRINT)
    NEED(capabilities2 & HWCAP2_FRINT, "FRINTTS");
#endif
#if defined(BUILT_WITH_MATMUL_INT8)
    NEED(capabilities2 & HWCAP2_I8MM, "I8MM");
#endif
#if defined(BUILT_WITH_BF16_VECTOR_ARITHMETIC)
    NEED(capabilities2 & HWCAP2_BF16, "BF16");
#endif
#if defined(BUILT_WITH_SVE)
    NEED(capabilities & HWCAP_SVE, "SVE");
#endif
#if defined(BUILT_WITH_SVE2)
    NEED(capabilities2 & HWCAP2_SVE2, "SVE2");
#endif
#undef NEED
    static_cast<void>(capabilities), static_cast<void>(capabilities2);  // the baseline needs none of them
#endif
    return missing;
}

// Runs before all other static constructors, which may already use the missing instructions.
[[gnu::constructor(101)]] void refuse_early() {
    const Missing missing = find_missing();
    if (missing.length == 0) return;
    const auto say = [](const char* text) {
        int length = 0;
        while (text[length]) ++length;
        if (write(STDERR_FILENO, text, std::size_t(length)) < 0) _exit(2);
    };
    say("error: this processor lacks instructions that the program was built with:");
    say(missing.names);
#if defined(__aarch64__)
    say("; build it on this machine, or with make MARCH=armv8-a\n");
#else
    say("; build it on this machine, or with make MARCH=x86-64-v3\n");
#endif
    _exit(2);
}

}  // namespace
}  // namespace llmc
