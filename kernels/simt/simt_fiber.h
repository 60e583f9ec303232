// simt_fiber.h - stacks for fibers and the context switch between them. Only simt_scheduler.cpp may include it, because
// it defines an assembly function
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "kernels/base/error.h"

// void simt_switch_context(void** save, void* load): pushes the callee-saved registers, stores the stack pointer in
// *save, and resumes the context saved at `load`. Kernels do not modify the floating-point control words, so they are
// not saved.
extern "C" void simt_switch_context(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl simt_switch_context
.hidden simt_switch_context
.type simt_switch_context, @function
simt_switch_context:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size simt_switch_context, . - simt_switch_context
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.globl simt_switch_context
.hidden simt_switch_context
.type simt_switch_context, %function
simt_switch_context:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size simt_switch_context, . - simt_switch_context
)");
#else
#error "the context switch between fibers supports x86-64 and aarch64 only"
#endif

namespace simt {

inline constexpr std::size_t kStackBytes = 128 * 1024;  // composing and throwing an Error takes 5.4 KiB of it

// A stack with a guard page below it, and its saved stack pointer. Default-constructed: the OS thread's own stack.
class Fiber {
public:
    Fiber() = default;
    // `ordinal` staggers the stack tops: with equal page offsets the hottest lines of all stacks would map to the same
    // few sets of the L1 cache.
    Fiber(std::size_t ordinal, void (*entry)()) {
        const std::size_t page = std::size_t(sysconf(_SC_PAGESIZE));
        bytes_ = page + kStackBytes;
        void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                            0);
        if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
            if (memory != MAP_FAILED) munmap(memory, bytes_);
            fail("the number of stacks on one core", ordinal, "one more", "raise vm.max_map_count or use fewer threads",
                 Blame::runtime);
        }
        memory_ = static_cast<std::byte*>(memory);
        std::byte* top = memory_ + bytes_ - ordinal * 320 % 4096;
#if defined(__x86_64__)
        // six registers, `entry` as return address, and none above it
        void** frame = reinterpret_cast<void**>(top) - 8;
        frame[6] = reinterpret_cast<void*>(entry);
#else
        void** frame = reinterpret_cast<void**>(top) - 20;
        frame[11] = reinterpret_cast<void*>(entry);  // x30
#endif
        stack_pointer = frame;
    }
    ~Fiber() {
        if (!memory_) return;
#if defined(__SANITIZE_ADDRESS__)
        // otherwise it would keep the poisoned frames when the memory is reused for another fiber or a thread's stack
        __asan_unpoison_memory_region(memory_, bytes_);
#endif
        munmap(memory_, bytes_);
    }
    Fiber(const Fiber&) = delete;
    bool holds(const void* address) const { return address >= memory_ && address < memory_ + bytes_; }

    void* stack_pointer = nullptr;

    // AddressSanitizer must know the current stack: call leave_for() before a switch to `to`, arrive() after a switch.
#if defined(__SANITIZE_ADDRESS__)
    void leave_for(const Fiber& to) {
        const bool is_own = !to.memory_;
        __sanitizer_start_switch_fiber(&frames_, is_own ? own_stack().low : to.memory_,
                                       is_own ? own_stack().bytes : to.bytes_);
    }
    void arrive() { __sanitizer_finish_switch_fiber(frames_, nullptr, nullptr); }
#else
    void leave_for(const Fiber&) {}
    void arrive() {}
#endif

private:
#if defined(__SANITIZE_ADDRESS__)
    struct OwnStack {
        const std::byte* low = nullptr;
        std::size_t bytes = 0;
        OwnStack() {
            pthread_attr_t attributes;
            void* address = nullptr;
            if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
            pthread_attr_getstack(&attributes, &address, &bytes);
            pthread_attr_destroy(&attributes);
            low = static_cast<const std::byte*>(address);
        }
    };
    // Cached, because for the main thread the C library reads the list of all mappings, of which fibers have many.
    static const OwnStack& own_stack() {
        thread_local const OwnStack stack;
        return stack;
    }
    void* frames_ = nullptr;  // AddressSanitizer's fake stack of this fiber
#endif
    std::byte* memory_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace simt
