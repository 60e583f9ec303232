// cut_off_guard.cpp - the handler of SIGBUS and the list of ranges that it looks through
#include "llmc/base/cut_off_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>

namespace llmc {

// One of a list that only grows, so that the handler can walk it at any time; a range whose guard has gone has end 0
// and is taken again.
struct GuardedRange {
    std::atomic<std::uintptr_t> begin = 0, end = 0;
    std::atomic<bool> marked = false;
    GuardedRange* next = nullptr;
};

namespace {

// A handler gets no argument of ours: what it needs can only be global.
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
            return;  // the read is tried again
        }
    }
    sigaction(SIGBUS, &guarded.before, nullptr);  // the access is tried again, and ends as if there were no guard
    if (info->si_code <= 0) raise(signal);        // sent, not met
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
