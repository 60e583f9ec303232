// pcre2.cpp - the PCRE2 features that train_gpt2 uses; scripts/install_deps.sh compiles it
//
// library:  PCRE2
// expected: version 10.32
// packages: libpcre2-dev
// version:  PCRE2_MAJOR.PCRE2_MINOR
// link:     -lpcre2-8
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

int main() {
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_code* const code = pcre2_compile(PCRE2_SPTR("\\p{L}+"), 6, PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error,
                                           &at, nullptr);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    pcre2_match_context* const context = pcre2_match_context_create(nullptr);
    pcre2_set_match_limit(context, 1000);
    pcre2_jit_stack* const stack = pcre2_jit_stack_create(1024, 1024, nullptr);
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_match_data* const match = pcre2_match_data_create_from_pattern(code, nullptr);
    pcre2_jit_match(code, PCRE2_SPTR("text"), 4, 0, PCRE2_NO_UTF_CHECK, match, context);
    const int found = pcre2_match(code, PCRE2_SPTR("text"), 4, 0, PCRE2_ANCHORED, match, context);
    return found > 0 && pcre2_get_ovector_pointer(match)[1] == 4 ? 0 : 1;
}
