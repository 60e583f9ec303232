// zstd.cpp - the zstd features that train_gpt2 uses; scripts/install_deps.sh compiles it
//
// library:  zstd
// expected: version 1.3
// packages: libzstd-dev
// version:  ZSTD_VERSION_MAJOR.ZSTD_VERSION_MINOR.ZSTD_VERSION_RELEASE
// link:     -lzstd
#include <zstd.h>

int main() {
    ZSTD_DStream* const stream = ZSTD_createDStream();
    ZSTD_inBuffer in{"", 0, 0};
    char bytes[8];
    ZSTD_outBuffer out{bytes, 8, 0};
    const auto left = ZSTD_decompressStream(stream, &out, &in);
    ZSTD_freeDStream(stream);
    return ZSTD_isError(left) && *ZSTD_getErrorName(left) ? 1 : 0;
}
