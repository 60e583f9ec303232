// simt_race_calls.cpp - the functions that code compiled with -fsanitize=thread calls before each access, and in place
// of each atomic operation
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

// CUDA's atomics are relaxed. The host's are sequentially consistent here, which the detector ignores.
#define NOTED(address)                                                                                        \
    simt::races::note(const_cast<const void*>(static_cast<const volatile void*>(address)), sizeof *(address), \
                      Access::atomic, __builtin_return_address(0))
#define ATOMIC(bits)                                                                                             \
    using Word##bits = std::uint##bits##_t;                                                                      \
    Word##bits __tsan_atomic##bits##_load(const volatile Word##bits* address, int) {                             \
        NOTED(address);                                                                                          \
        return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                                       \
    }                                                                                                            \
    void __tsan_atomic##bits##_store(volatile Word##bits* address, Word##bits value, int) {                      \
        NOTED(address);                                                                                          \
        __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                                      \
    }                                                                                                            \
    Word##bits __tsan_atomic##bits##_exchange(volatile Word##bits* address, Word##bits value, int) {             \
        NOTED(address);                                                                                          \
        return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);                                            \
    }                                                                                                            \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile Word##bits* address, Word##bits* expected,        \
                                                      Word##bits value, int, int) {                              \
        NOTED(address);                                                                                          \
        return __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }                                                                                                            \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile Word##bits* address, Word##bits* expected,          \
                                                    Word##bits value, int, int) {                                \
        NOTED(address);                                                                                          \
        return __atomic_compare_exchange_n(address, expected, value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);  \
    }
#define ATOMIC_FETCH(bits, operation)                                                                         \
    Word##bits __tsan_atomic##bits##_fetch_##operation(volatile Word##bits* address, Word##bits value, int) { \
        NOTED(address);                                                                                       \
        return __atomic_fetch_##operation(address, value, __ATOMIC_SEQ_CST);                                  \
    }
#define ATOMIC_ALL(bits) \
    ATOMIC(bits)                                                          \
    ATOMIC_FETCH(bits, add) ATOMIC_FETCH(bits, sub) ATOMIC_FETCH(bits, and) \
    ATOMIC_FETCH(bits, or) ATOMIC_FETCH(bits, xor) ATOMIC_FETCH(bits, nand)
ATOMIC_ALL(8)
ATOMIC_ALL(16)
ATOMIC_ALL(32)
ATOMIC_ALL(64)

void __tsan_atomic_thread_fence(int) { simt::races::fence(); }
void __tsan_atomic_signal_fence(int) { simt::races::fence(); }

}  // extern "C"
