// simt_shared.cpp - simt_shared.h: allocates shared arrays, poisons them with NaN, and checks the red zones between
// them
#include <algorithm>
#include <cstring>

#include "kernels/simt/simt_block.h"

namespace simt {
namespace {

// Alternating 0xf7, 0x7f: NaN as bf16, float and double, so that a read outside an array shows, too; different from
// 0xff, so that a stray write of poisoned values also shows.
std::byte zone_mark(const std::byte* address) {
    return std::byte(reinterpret_cast<std::uintptr_t>(address) % 2 == 0 ? 0xf7 : 0x7f);
}
void mark_zone(std::byte* begin, std::byte* end) {
    for (; begin < end; ++begin) *begin = zone_mark(begin);
}

std::string spell_array(const char* name, std::size_t bytes) {
    return (name ? "shared array " + std::string(name) : std::string("the dynamic shared memory")) + " (" +
           std::to_string(bytes) + " bytes)";
}

}  // namespace

void SharedMemory::mark_zones_of_dynamic() {
    red_zone_ = kRedZoneBytes;
    mark_zone(memory_ - red_zone_, memory_);
    mark_zone(memory_ + dynamic_bytes_, memory_ + dynamic_bytes_ + red_zone_);
}

void* SharedMemory::declare(const char* declaration, std::size_t bytes, std::size_t alignment) {
    alignment = std::max<std::size_t>(alignment, 16);
    const std::size_t begin = round_up(used_, alignment);
    if (begin + bytes > limit_)
        fault("shared memory is " + std::to_string(begin + bytes) + " bytes (" + std::to_string(dynamic_bytes_) +
              " of them dynamic); expected at most " + std::to_string(limit_));
    if (declared_ == kMaxVariables) fault("more than " + std::to_string(kMaxVariables) + " variables in shared memory");
    std::byte* const address = memory_ + begin + red_zone_ * std::size_t(declared_ + 1);
    if (red_zone_ != 0) {
        const Variable before = array(declared_ - 1);
        // mark the alignment gap only: the red zone of the previous array may already record a stray write
        mark_zone(before.begin + before.bytes + red_zone_, address);
        mark_zone(address + bytes, address + bytes + red_zone_);
        if (poison_) std::memset(address, 0xff, bytes);
    }
    variables_[declared_++] = {declaration, address, bytes};
    used_ = begin + bytes;
    return address;
}

void SharedMemory::begin_block(bool poison) {
    poison_ = poison;
    if (!poison) return;
    for (int i = -1; i < declared_; ++i) std::memset(array(i).begin, 0xff, array(i).bytes);
}

std::string SharedMemory::describe(const void* address) const {
    for (int i = -1; i < declared_; ++i) {
        const std::ptrdiff_t byte = static_cast<const std::byte*>(address) - array(i).begin;
        if (byte >= 0 && byte < std::ptrdiff_t(array(i).bytes))
            return "at byte " + std::to_string(byte) + " of " + spell_array(array(i).name, array(i).bytes);
    }
    return {};
}

std::string SharedMemory::describe_stray_write() const {
    const auto stray = [](const std::byte* begin, const std::byte* end) {
        while (begin < end && *begin == zone_mark(begin)) ++begin;
        return begin;
    };
    const auto spell_before = [&](int i, const std::byte* address) {
        return std::to_string(array(i).begin - address) + " bytes before the start of " +
               spell_array(array(i).name, array(i).bytes);
    };
    const int first = dynamic_bytes_ == 0 && declared_ > 0 ? 0 : -1;  // messages do not name an empty dynamic array
    if (const std::byte* address = stray(memory_ - red_zone_, memory_); address != memory_)
        return spell_before(first, address);
    for (int i = -1; i < declared_; ++i) {
        const std::byte *end = array(i).begin + array(i).bytes,
                        *next = i + 1 < declared_ ? array(i + 1).begin : end + red_zone_;
        const std::byte* address = stray(end, next);
        if (address == next) continue;
        if (i + 1 < declared_ && (i < first || next - address < address - end)) return spell_before(i + 1, address);
        return std::to_string(address - end) + " bytes past the end of " + spell_array(array(i).name, array(i).bytes);
    }
    return {};
}

}  // namespace simt
