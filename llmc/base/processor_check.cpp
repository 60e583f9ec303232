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

// The Makefile defines BUILT_WITH_AVX2 etc. as 1; the text of a macro that is not defined is its name.
#define TEXT_OF(macro) #macro
#define TEXT(macro) TEXT_OF(macro)
#define NEED(feature, name, has) \
    if (TEXT(BUILT_WITH_##feature)[0] == '1' && !(has)) missing.add(name)

Missing find_missing() {
    Missing missing;
#if defined(__x86_64__)
    __builtin_cpu_init();
    NEED(AVX2, "AVX2", __builtin_cpu_supports("avx2"));
    NEED(FMA, "FMA", __builtin_cpu_supports("fma"));
    NEED(BMI2, "BMI2", __builtin_cpu_supports("bmi2"));
    NEED(AVX512F, "AVX-512F", __builtin_cpu_supports("avx512f"));
    NEED(AVX512BW, "AVX-512BW", __builtin_cpu_supports("avx512bw"));
    NEED(AVX512VL, "AVX-512VL", __builtin_cpu_supports("avx512vl"));
    NEED(AVX512DQ, "AVX-512DQ", __builtin_cpu_supports("avx512dq"));
    NEED(AVX512VBMI2, "AVX-512VBMI2", __builtin_cpu_supports("avx512vbmi2"));
    NEED(AVX512VNNI, "AVX-512VNNI", __builtin_cpu_supports("avx512vnni"));
    NEED(AVX512BF16, "AVX512-BF16", __builtin_cpu_supports("avx512bf16"));
#elif defined(__aarch64__)
    const unsigned long capabilities = getauxval(AT_HWCAP), capabilities2 = getauxval(AT_HWCAP2);
    NEED(ATOMICS, "LSE", capabilities & HWCAP_ATOMICS);
    NEED(CRC32, "CRC32", capabilities & HWCAP_CRC32);
    NEED(QRDMX, "RDM", capabilities & HWCAP_ASIMDRDM);
    NEED(FP16_VECTOR_ARITHMETIC, "FP16", capabilities & HWCAP_ASIMDHP);
    NEED(DOTPROD, "DotProd", capabilities & HWCAP_ASIMDDP);
    NEED(COMPLEX, "FCMA", capabilities & HWCAP_FCMA);
    NEED(RCPC, "RCpc", capabilities & HWCAP_LRCPC);
    NEED(FRINT, "FRINTTS", capabilities2 & HWCAP2_FRINT);
    NEED(MATMUL_INT8, "I8MM", capabilities2 & HWCAP2_I8MM);
    NEED(BF16_VECTOR_ARITHMETIC, "BF16", capabilities2 & HWCAP2_BF16);
    NEED(SVE, "SVE", capabilities & HWCAP_SVE);
    NEED(SVE2, "SVE2", capabilities2 & HWCAP2_SVE2);
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
