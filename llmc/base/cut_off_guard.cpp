// cut_off_guard.cpp - the SIGBUS handler and its list of guarded ranges
#include "llmc/base/cut_off_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>

namespace llmc {

// An entry of a list that only grows, so that the handler can walk it at any time. An entry whose guard has been
// destroyed has end 0 and is reused.
struct GuardedRange {
    std::atomic<std::uintptr_t> begin = 0, end = 0;
    std::atomic<bool> marked = false;
    GuardedRange* next = nullptr;
};

namespace {

// A signal handler takes no user argument, so its data must be global.
struct Guarded {
    std::atomic<GuardedRange*> first = nullptr;
    std::mutex changing;
    std::uintptr_t page = 0;
    struct sigaction before {};
};
Guarded guarded;

GuardedRange* range_of(std::uintptr_t address) {
    for (GuardedRange* range = guarded.first.load(); range; range = range->next)
        if (address >= range->begin.load() && address < range->end.load()) return range;
    return nullptr;
}

void on_bus_error(int signal, siginfo_t* info, void*) {
    const int error = errno;
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    GuardedRange* const range = info->si_code > 0 ? range_of(address) : nullptr;
    if (range) {
        const std::uintptr_t page = address / guarded.page * guarded.page;
        void* const zeros = mmap(reinterpret_cast<void*>(page), range->end.load() - page, PROT_READ,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        if (zeros != MAP_FAILED) {
            range->marked = true;
            errno = error;
            return;  // the read is retried
        }
    }
    sigaction(SIGBUS, &guarded.before, nullptr);  // the access is retried and handled as without a guard
    if (info->si_code <= 0) raise(signal);        // sent by kill() or raise(), not caused by an access
    errno = error;
}

}  // namespace

CutOffGuard::CutOffGuard(const std::byte* address, std::size_t bytes) {
    const std::lock_guard lock(guarded.changing);
    if (guarded.page == 0) {
        guarded.page = std::uintptr_t(sysconf(_SC_PAGE_SIZE));
        struct sigaction action {};
        action.sa_sigaction = on_bus_error;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        sigaction(SIGBUS, &action, &guarded.before);
    }
    for (range_ = guarded.first; range_ && range_->end != 0;) range_ = range_->next;
    if (!range_) {
        range_ = new GuardedRange;
        range_->next = guarded.first;
        guarded.first = range_;
    }
    range_->marked = false;
    range_->begin = reinterpret_cast<std::uintptr_t>(address);
    range_->end = (range_->begin + bytes + guarded.page - 1) / guarded.page * guarded.page;
}

CutOffGuard::~CutOffGuard() {
    if (range_) range_->end = 0;
}

bool CutOffGuard::marked() const { return range_ && range_->marked; }

}  // namespace llmc
