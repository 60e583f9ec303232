// memory.cpp - loads and stores of a warp, with checks of their addresses
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "test/stand_in/protocol.h"
#include "test/stand_in/ptx/operations.h"

namespace stand_in::ptx {
namespace {

std::string hexadecimal(std::uint64_t value) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

// ---- address checks; an invalid access ends the program

// Checks that global addresses of the active lanes, each of `bytes`, are aligned and in device or page-locked memory,
// and notes the accesses; neighbouring accesses of neighbouring lanes are noted together.
void require_global(Warp& warp, const std::uint64_t* base, std::int64_t offset, unsigned bytes, std::uint32_t lanes,
                    bool written) {
    std::uint64_t begin = 0, end = 0;
    for_lanes(lanes, [&](unsigned lane) {
        const std::uint64_t address = base[lane] + std::uint64_t(offset);
        const void* const memory = reinterpret_cast<const void*>(address);
        if (address % bytes)
            fail(warp, "lane " + std::to_string(lane) + (written ? " stores " : " loads ") + std::to_string(bytes) +
                           " bytes at " + hexadecimal(address) + ", which is not aligned");
        if (!is_device(memory) && !is_pinned(memory))
            fail(warp, "lane " + std::to_string(lane) + " touches " + hexadecimal(address) +
                           ", host memory or unmapped memory");
        if (address == end) {
            end += bytes;
            return;
        }
        if (end > begin) note_access(reinterpret_cast<const void*>(begin), end - begin, written);
        begin = address;
        end = address + bytes;
    });
    if (end > begin) note_access(reinterpret_cast<const void*>(begin), end - begin, written);
}

std::byte* shared_at(Warp& warp, unsigned lane, std::uint64_t address, unsigned bytes) {
    if (address % bytes || address + bytes > warp.shared.size())
        fail(warp, "lane " + std::to_string(lane) + " touches " + std::to_string(bytes) + " bytes at " +
                       std::to_string(address) + " of shared memory of " + std::to_string(warp.shared.size()) +
                       (address % bytes ? ", not aligned" : ""));
    return warp.shared.data() + address;
}

template <Space S>
std::byte* memory_of(Warp& warp, const Instruction& instruction, unsigned lane, unsigned bytes) {
    const auto offset = std::uint64_t(instruction.immediate);
    if constexpr (S == Space::shared) {
        return shared_at(warp, lane, std::uint32_t(warp.row<std::uint32_t>(instruction.row[0])[lane] + offset), bytes);
    } else {
        const std::uint64_t address = warp.row<std::uint64_t>(instruction.row[0])[lane] + offset;
        if constexpr (S == Space::global) return reinterpret_cast<std::byte*>(address);
        const std::uint64_t size = S == Space::local ? warp.function->local_bytes : warp.parameter_bytes;
        if (bytes > size || address > size - bytes || address % bytes)
            fail(warp, "lane " + std::to_string(lane) + " touches byte " + std::to_string(address) + " of " +
                           std::to_string(size) + (S == Space::local ? " on its stack" : " of parameters"));
        if constexpr (S == Space::local) return warp.local + lane * warp.function->local_bytes + address;
        return const_cast<std::byte*>(warp.parameters) + address;
    }
}

// Checks global addresses of the lanes.
template <Space S>
void look_at(Warp& warp, const Instruction& instruction, unsigned bytes, bool written) {
    if constexpr (S == Space::global)
        require_global(warp, warp.row<std::uint64_t>(instruction.row[0]), instruction.immediate, bytes, warp.active,
                       written);
}

template <Space S, class T, class R, unsigned Count>
void load(Warp& warp, const Instruction& instruction) {
    T values[Count];
    look_at<S>(warp, instruction, sizeof values, false);
    for_lanes(warp.active, [&](unsigned lane) {
        std::memcpy(values, memory_of<S>(warp, instruction, lane, sizeof values), sizeof values);
        for (unsigned i = 0; i < Count; ++i) warp.row<R>(instruction.row[i + 1])[lane] = R(values[i]);
    });
}

template <Space S, class T, class R, unsigned Count>
void store(Warp& warp, const Instruction& instruction) {
    T values[Count];
    look_at<S>(warp, instruction, sizeof values, true);
    for_lanes(warp.active, [&](unsigned lane) {
        for (unsigned i = 0; i < Count; ++i) values[i] = T(warp.row<R>(instruction.row[i + 1])[lane]);
        std::memcpy(memory_of<S>(warp, instruction, lane, sizeof values), values, sizeof values);
    });
}

template <bool Loads, Space S, class T, class R>
Handler of_count(unsigned elements) {
    switch (elements) {
#define OF_COUNT(count) \
    case count: return Loads ? load<S, T, R, count> : store<S, T, R, count>
        OF_COUNT(1);
        OF_COUNT(2);
        OF_COUNT(4);
#undef OF_COUNT
        default: return nullptr;
    }
}
template <bool Loads, Space S, class T>
Handler of_register(unsigned register_bytes, unsigned elements) {
    constexpr bool is_signed = std::is_signed_v<T>;
    if (register_bytes < sizeof(T)) return nullptr;
    switch (register_bytes) {
        case 2: return of_count<Loads, S, T, std::conditional_t<is_signed, std::int16_t, std::uint16_t>>(elements);
        case 4: return of_count<Loads, S, T, std::conditional_t<is_signed, std::int32_t, std::uint32_t>>(elements);
        case 8: return of_count<Loads, S, T, std::conditional_t<is_signed, std::int64_t, std::uint64_t>>(elements);
        default: return nullptr;
    }
}
template <bool Loads, Space S>
Handler of_bits(Type type, unsigned register_bytes, unsigned elements) {
    const bool extends = type.kind == 's';
    switch (type.bits) {
#define OF_BITS(bits)                                                                               \
    case bits:                                                                                      \
        return extends ? of_register<Loads, S, std::int##bits##_t>(register_bytes, elements)        \
                       : of_register<Loads, S, std::uint##bits##_t>(register_bytes, elements)
        OF_BITS(8);
        OF_BITS(16);
        OF_BITS(32);
        OF_BITS(64);
#undef OF_BITS
        default: return nullptr;
    }
}
template <bool Loads>
Handler of_space(Space space, Type type, unsigned register_bytes, unsigned elements) {
    switch (space) {
        case Space::global: return of_bits<Loads, Space::global>(type, register_bytes, elements);
        case Space::shared: return of_bits<Loads, Space::shared>(type, register_bytes, elements);
        case Space::local: return of_bits<Loads, Space::local>(type, register_bytes, elements);
        case Space::parameter:
            if constexpr (Loads) return of_bits<true, Space::parameter>(type, register_bytes, elements);
            return nullptr;
    }
    return nullptr;
}

// Lane 8 j + i has the address of row i of matrix j; lane l gets elements 2 (l % 4) and the next of row l / 4 or, if
// transposed, of column l / 4.
template <bool Transposed>
void ldmatrix(Warp& warp, const Instruction& instruction) {
    std::uint16_t elements[4][8][8];
    const auto* const addresses = warp.row<std::uint32_t>(instruction.row[0]);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
        const auto address = std::uint32_t(addresses[lane] + std::uint64_t(instruction.immediate));
        std::memcpy(elements[lane / 8][lane % 8], shared_at(warp, lane, address, 16), 16);
    }
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
        auto* const to = warp.row<std::uint32_t>(instruction.row[matrix + 1]);
        for (unsigned lane = 0; lane < kLanes; ++lane) {
            const unsigned group = lane / 4, pair = lane % 4 * 2;
            const auto& all = elements[matrix];
            to[lane] = Transposed ? all[pair][group] | std::uint32_t(all[pair + 1][group]) << 16
                                  : all[group][pair] | std::uint32_t(all[group][pair + 1]) << 16;
        }
    }
}

}  // namespace

Handler load_of(Space space, Type type, unsigned register_bytes, unsigned elements) {
    return of_space<true>(space, type, register_bytes, elements);
}
Handler store_of(Space space, Type type, unsigned register_bytes, unsigned elements) {
    return of_space<false>(space, type, register_bytes, elements);
}
Handler ldmatrix_of(bool transposed) { return transposed ? ldmatrix<true> : ldmatrix<false>; }

// ---- asynchronous copies: their destination is undefined (here NaN) until the lane has waited; they arrive as late as
// allowed

void copy_async(Warp& warp, const Instruction& instruction) {
    const auto* const shared = warp.row<std::uint32_t>(instruction.row[0]);
    const auto* const global = warp.row<std::uint64_t>(instruction.row[1]);
    const auto* const bytes = warp.row<std::uint32_t>(instruction.row[2]);
    const std::uint32_t offset = *warp.row<std::uint32_t>(instruction.row[3]);
    std::uint32_t reading = 0;
    for_lanes(warp.active, [&](unsigned lane) { reading |= std::uint32_t(bytes[lane] > 0) << lane; });
    require_global(warp, global, instruction.immediate, 16, reading, false);
    for_lanes(warp.active, [&](unsigned lane) {
        const std::uint32_t to = shared[lane] + offset;
        if (bytes[lane] > 16) fail(warp, "cp.async of " + std::to_string(bytes[lane]) + " bytes; at most 16");
        std::memset(shared_at(warp, lane, to, 16), 0xff, 16);
        const std::uint64_t from = global[lane] + std::uint64_t(instruction.immediate);
        warp.copies.push_back({lane, to, bytes[lane], reinterpret_cast<const std::byte*>(from)});
    });
}

void wait_for_copies(Warp& warp, const Instruction&) {
    std::erase_if(warp.copies, [&](const Copy& copy) {
        if (!(warp.active >> copy.lane & 1)) return false;
        std::byte* const to = warp.shared.data() + copy.shared;
        std::memset(to, 0, 16);
        std::memcpy(to, copy.global, copy.bytes);
        return true;
    });
}

}  // namespace stand_in::ptx
