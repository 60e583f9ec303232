// xxhash.cpp - the xxHash features that train_gpt2 uses; scripts/install_deps.sh compiles it
//
// library:  xxHash
// expected: version 0.8, which has XXH3
// packages: libxxhash-dev
// version:  XXH_VERSION_MAJOR.XXH_VERSION_MINOR.XXH_VERSION_RELEASE
#define XXH_INLINE_ALL
#include <xxhash.h>

int main() {
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, "text", 4);
    const XXH64_hash_t sum = XXH3_64bits_digest(&state);
    return sum == XXH3_64bits("text", 4) ? 0 : 1;
}
