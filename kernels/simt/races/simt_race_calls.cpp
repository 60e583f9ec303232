// simt_race_calls.cpp - the functions that code compiled with -fsanitize=thread calls before each access
#include <cstddef>
#include <cstdint>

#include "kernels/simt/races/simt_race.h"

using simt::races::Access;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define NOTE(name, bytes, access)                                                       \
    void __tsan_##name(void* address) {                                                 \
        simt::races::note(address, bytes, Access::access, __builtin_return_address(0)); \
    }
#define NOTE_SIZE(bytes)                             \
    NOTE(read##bytes, bytes, read)                   \
    NOTE(unaligned_read##bytes, bytes, read)         \
    NOTE(volatile_read##bytes, bytes, read)          \
    NOTE(unaligned_volatile_read##bytes, bytes, read) \
    NOTE(write##bytes, bytes, write)                 \
    NOTE(unaligned_write##bytes, bytes, write)       \
    NOTE(volatile_write##bytes, bytes, write)        \
    NOTE(unaligned_volatile_write##bytes, bytes, write)
NOTE_SIZE(1)
NOTE_SIZE(2)
NOTE_SIZE(4)
NOTE_SIZE(8)
NOTE_SIZE(16)

void __tsan_read_range(void* address, std::size_t bytes) {
    simt::races::note(address, bytes, Access::read, __builtin_return_address(0));
}
void __tsan_write_range(void* address, std::size_t bytes) {
    simt::races::note(address, bytes, Access::write, __builtin_return_address(0));
}
void __tsan_vptr_update(void**, void*) {}  // kernels have no objects with virtual functions

// Host code beside the kernels uses them: guards of static variables, reference counts. Kernels use no atomics.
std::uint8_t __tsan_atomic8_load(const volatile std::uint8_t* address, int) {
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);
}
std::uint32_t __tsan_atomic32_fetch_add(volatile std::uint32_t* address, std::uint32_t value, int) {
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}

}  // extern "C"
