// first_bits.h - checks whether repeated runs leave bit-identical results in device memory
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/device/memory.h"

namespace kernels {

// Compares device memory with its bits at the first call, in chunks, because results can take gigabytes. Waits.
class FirstBits {
public:
    bool match(const void* data, std::size_t bytes, StreamRef stream) {
        const bool is_first = first_.empty();
        if (is_first) first_.resize(bytes);
        std::vector<std::byte> piece(is_first ? 0 : std::min(bytes, kPiece));
        for (std::size_t done = 0; done < bytes; done += kPiece) {
            const std::size_t size = std::min(kPiece, bytes - done);
            std::byte* const to = is_first ? first_.data() + done : piece.data();
            device::copy_to_host(to, static_cast<const std::byte*>(data) + done, size, stream);
            device::sync(stream);
            if (std::memcmp(to, first_.data() + done, size) != 0) return false;
        }
        return true;
    }

private:
    static constexpr std::size_t kPiece = std::size_t(64) << 20;
    std::vector<std::byte> first_;
};

}  // namespace kernels
