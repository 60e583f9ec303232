// libfuzzer.cpp - libFuzzer's two entry points, which select the target of this program and check its parser, and the
// memory past the end of mapped files
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <cstdint>

#include "test/fuzz/target.h"

namespace fuzz {
namespace {

constexpr std::uintptr_t kPage = 4096;

Parse& chosen() {
    static Parse parse = nullptr;
    return parse;
}

std::uintptr_t to_page_end(std::uintptr_t address) { return (address + kPage - 1) / kPage * kPage; }

}  // namespace
}  // namespace fuzz

// Memory between the end of a mapped file and the end of its page is accessible, so that no check would detect reads of
// it: here it is poisoned.
extern "C" {
void* __real_mmap(void* address, std::size_t size, int protection, int flags, int file, off_t offset);
void* __wrap_mmap(void* address, std::size_t size, int protection, int flags, int file, off_t offset) {
    void* const mapped = __real_mmap(address, size, protection, flags, file, offset);
    if (file < 0 || mapped == MAP_FAILED) return mapped;
    const auto end = reinterpret_cast<std::uintptr_t>(mapped) + size;
    ASAN_POISON_MEMORY_REGION(reinterpret_cast<void*>(end), fuzz::to_page_end(end) - end);
    return mapped;
}

int __real_munmap(void* address, std::size_t size);
int __wrap_munmap(void* address, std::size_t size) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    ASAN_UNPOISON_MEMORY_REGION(address, fuzz::to_page_end(begin + size) - begin);
    return __real_munmap(address, size);
}

int LLVMFuzzerInitialize(int*, char*** arguments) {
    const std::string name = std::filesystem::path(**arguments).filename();
    for (const fuzz::NamedTarget& target : fuzz::targets())
        if (target.name == name) fuzz::chosen() = target.parse;
    fuzz::must(fuzz::chosen(), "the name of a target: " + name);
    return 0;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::check(fuzz::chosen(), {reinterpret_cast<const char*>(data), size});
    return 0;
}
}
