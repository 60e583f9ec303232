// zlib.cpp - the zlib features that train_gpt2 uses; scripts/install_deps.sh compiles it
//
// library:  zlib
// expected: any version
// packages: zlib1g-dev
// version:  ZLIB_VERSION
// link:     -lz
#include <zlib.h>

int main() {
    z_stream stream{};
    if (deflateInit2(&stream, 1, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) != Z_OK) return 1;
    if (deflateEnd(&stream) != Z_OK) return 1;
    return inflateInit2(&stream, 31) == Z_OK && inflateReset(&stream) == Z_OK ? inflateEnd(&stream) : 1;
}
