// simt_shared.h - the shared memory of a block: the layout of its arrays, and checks for accesses outside them
//
// The dynamic array comes first, then each static one at a multiple of 16. Blocks of more than one thread are checked:
// red zones separate their arrays, and the bytes of the red zones must be unchanged when the block ends.
//
//     red zone | dynamic | red zone | first static array | red zone | ...
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace simt {

// The maximum per block on any GPU: 227 KiB on sm_90, static plus dynamic. device::limits() says how much of it a
// launch may use.
inline constexpr std::size_t kSharedLimit = 227 * 1024;
// A multiple of every alignment, so that red zones preserve the alignment of arrays.
inline constexpr std::size_t kRedZoneBytes = 256;

class SharedMemory {
public:
    static constexpr int kMaxVariables = 32;
    static constexpr std::size_t kArenaBytes = kSharedLimit + (kMaxVariables + 2) * kRedZoneBytes;

    // `arena`: kArenaBytes, aligned to 256. `limit`: maximum bytes of all arrays together.
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
    // `declaration`: the name of the variable; its address identifies the declaration, since several may share a name.
    // The first thread that reaches a declaration allocates the array, for all blocks of the launch.
    void* variable(const char* declaration, std::size_t bytes, std::size_t alignment) {
        for (int i = 0; i < declared_; ++i)
            if (variables_[i].name == declaration) return variables_[i].begin;
        return declare(declaration, bytes, alignment);
    }

    // The next two are for checked launches only. With `poison`, begin_block fills every array with 0xff bytes; an
    // array that is declared later is filled at its declaration.
    void begin_block(bool poison);
    // Where the block wrote outside its arrays: "4 bytes past the end of shared array sums (128 bytes)"; "": nowhere.
    std::string describe_stray_write() const;
    // The array that holds `address`: "at byte 8 of shared array sums (128 bytes)"; "": none.
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
    std::size_t red_zone_ = 0;                  // bytes of each; 0: not checked
    bool poison_ = false;
    int declared_ = 0;
    Variable variables_[kMaxVariables] = {};
};

}  // namespace simt
