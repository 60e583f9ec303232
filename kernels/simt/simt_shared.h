// simt_shared.h - the shared memory of a block: where its arrays lie, and whether a kernel kept to them
//
// Laid out as a GPU's compiler would: the dynamic array first, then each static one at a multiple of 16. Blocks of more
// than one thread are checked: their arrays lie further apart, between red zones whose bytes must be found unchanged
// when the block ends.
//
//     red zone | dynamic | red zone | first static array | red zone | ...
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace simt {

// The most that a block can have on any GPU: 227 KiB on sm_90, static and dynamic together. How much of it a launch may
// take is device::limits()'s.
inline constexpr std::size_t kSharedLimit = 227 * 1024;
// A multiple of every alignment, so that red zones move no array off its own.
inline constexpr std::size_t kRedZoneBytes = 256;

class SharedMemory {
public:
    static constexpr int kMaxVariables = 32;
    static constexpr std::size_t kArenaBytes = kSharedLimit + (kMaxVariables + 2) * kRedZoneBytes;

    // `arena`: kArenaBytes at a multiple of 256. `limit`: of all arrays together.
    void begin_launch(std::byte* arena, std::size_t dynamic_bytes, std::size_t limit, bool checked) {
        memory_ = arena + kRedZoneBytes;
        limit_ = limit;
        dynamic_bytes_ = used_ = dynamic_bytes;
        declared_ = 0;
        red_zone_ = 0;
        if (checked) mark_zones_of_dynamic();
    }
    void* dynamic() const { return memory_; }
    bool holds(const void* address) const {
        return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(memory_) <
               kArenaBytes - kRedZoneBytes;
    }
    // `declaration`: the name of the variable, which also tells it from others of that name: it lies at an address of
    // its own. The first thread that passes a declaration makes room, which then stays for all blocks of the launch.
    void* variable(const char* declaration, std::size_t bytes, std::size_t alignment) {
        for (int i = 0; i < declared_; ++i)
            if (variables_[i].name == declaration) return variables_[i].begin;
        return declare(declaration, bytes, alignment);
    }

    // Both for checked launches only. `begin_block` fills every array with 0xff bytes where `poison` holds; an array
    // declared later is filled then.
    void begin_block(bool poison);
    // "" or where the block wrote outside its arrays: "4 bytes past the end of shared array sums (128 bytes)".
    std::string describe_stray_write() const;
    // "" or what lies there: "at byte 8 of shared array sums (128 bytes)".
    std::string describe(const void* address) const;

private:
    struct Variable {
        const char* name;
        std::byte* begin;
        std::size_t bytes;
    };
    void* declare(const char* declaration, std::size_t bytes, std::size_t alignment);
    void mark_zones_of_dynamic();
    Variable array(int i) const { return i < 0 ? Variable{nullptr, memory_, dynamic_bytes_} : variables_[i]; }

    std::byte* memory_ = nullptr;
    std::size_t dynamic_bytes_ = 0, used_ = 0, limit_ = 0;  // without red zones
    std::size_t red_zone_ = 0;                  // bytes of each; 0: unchecked
    bool poison_ = false;
    int declared_ = 0;
    Variable variables_[kMaxVariables] = {};
};

}  // namespace simt
