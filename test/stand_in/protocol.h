// protocol.h - what the host and the device process send each other, and where their common memory lies
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "test/stand_in/stand_in.h"

namespace stand_in {

inline constexpr std::uintptr_t kDeviceBegin = 0x100000000000, kPinnedBegin = 0x300000000000;
inline constexpr std::size_t kDeviceBytes = std::size_t(256) << 30, kPinnedBytes = std::size_t(16) << 30;
inline constexpr std::size_t kPage = 4096, kDeviceAlignment = 256;
// At the begin of pinned memory: what is copied between the device and the host's other memory passes through it.
inline constexpr std::size_t kBounceBytes = std::size_t(1) << 20;

inline bool is_device(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) - kDeviceBegin < kDeviceBytes;
}
inline bool is_pinned(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) - kPinnedBegin < kPinnedBytes;
}

// The environment variable that makes a process the device: "COMMANDS,DONE,DEVICE MEMORY,PINNED MEMORY", file
// descriptors.
inline constexpr const char* kDeviceVariable = "STAND_IN_DEVICE";

// Code in a module of the program, which lies elsewhere in each process.
struct CodePlace {
    char module[40];  // empty: the program itself
    std::uint64_t offset;
};
CodePlace place_of(const void* code);
std::uintptr_t code_at(const CodePlace& place);

// From the host. In the order in which the host called.
struct Command {
    enum class Kind : std::uint32_t {
        // operations of a stream
        work, copy, fill, record, wait_for_event, call_host,
        // at once
        allocate, free, destroy_event,
        // with an answer
        sync_stream, sync_event, sync_device, drain_device, query_event, elapsed, write_traffic
    } kind;
    std::uint32_t stream, event, other_event;
    std::uint32_t site;        // of the call, as the host counts them
    std::uint32_t value;       // of fill
    std::uint64_t to, from, bytes;
    std::uint64_t answer;      // the number that the answer gets
    double seconds;
    CodePlace work;
    std::uint32_t range_count, name_bytes, payload_bytes;  // what follows the command, in this order
};
// Of a command with what follows it.
inline constexpr std::size_t kMostCommand = 2 * kMostPayload;

// Answers to `elapsed` that are no time.
inline constexpr double kNeverRecorded = -2, kNotDone = -1;

// From the device.
struct Message {
    enum class Kind : std::uint32_t {
        answer,         // `number` of the command; `value`
        call_host,      // call `function` with `argument`; to be answered with a Done
        to_bounce,      // copy `bytes` from `argument` to the bounce memory; to be answered with a Done
        from_bounce,    // and back
        wrong           // the program did something wrong: text, and the sites of up to three calls; others are 0
    } kind;
    std::uint64_t number;
    double value;
    std::uint64_t function, argument, bytes;
    std::uint32_t sites[3];
    char text[600];
};

// From the host, on a socket of its own.
struct Done { std::uint64_t number; };

// In the device process: tells the host what is wrong with the operation that runs and which other calls it concerns,
// which ends both.
[[noreturn]] void report_wrong(const std::string& what, std::array<std::uint32_t, 2> other_sites = {});

}  // namespace stand_in
