// protocol.h - messages between the host and the device process, and the addresses of their shared memory
#pragma once
#include "test/stand_in/stand_in.h"

namespace stand_in {

inline constexpr std::uintptr_t kDeviceBegin = 0x100000000000, kPinnedBegin = 0x300000000000;
inline constexpr std::size_t kDeviceBytes = std::size_t(256) << 30, kPinnedBytes = std::size_t(16) << 30;
inline constexpr std::size_t kPage = 4096, kDeviceAlignment = 256;

inline bool is_device(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) - kDeviceBegin < kDeviceBytes;
}
inline bool is_pinned(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) - kPinnedBegin < kPinnedBytes;
}

// The environment variable that makes a process the device: "COMMANDS,DONE,DEVICE MEMORY,PINNED MEMORY", file
// descriptors.
inline constexpr const char* kDeviceVariable = "STAND_IN_DEVICE";

// From the host, in the order of its calls.
struct Command {
    enum class Kind : std::uint32_t {
        // operations of a stream
        work, copy, fill, record, wait_for_event, call_host,
        // executed at once
        allocate, free, destroy_event,
        // with an answer
        sync_stream, sync_event, sync_device, drain_device, query_event, elapsed
    } kind;
    std::uint32_t stream, event, other_event;
    std::uint32_t value;       // of fill
    std::uint64_t to, from, bytes;
    std::uint64_t answer;      // number of the answer
    double seconds;
    std::ptrdiff_t work;       // offset from program_begin
    std::uint32_t range_count, name_bytes, payload_bytes;  // sizes of the data after the command, in this order
};
// Longest command with its data.
inline constexpr std::size_t kMostCommand = 2 * kMostPayload;

// Answers to `elapsed` other than a time.
inline constexpr double kNeverRecorded = -2, kNotDone = -1;

// From the device.
struct Message {
    enum class Kind : std::uint32_t {
        answer,         // `number` of the command; `value`
        call_host,      // call `function` with `argument`; the host answers with a Done
        wrong           // an error of the program: text
    } kind;
    std::uint64_t number;
    double value;
    std::uint64_t function, argument;
    char text[600];
};

// From the host, on its own socket.
struct Done { std::uint64_t number; };

// ---- in the device process: stop()

[[noreturn]] void report_wrong(const std::string& what);

// ---- in the host process

// Sends a command and the data that follows it; starts the device before the first one.
void send(Command command, std::span<const Range> ranges = {}, std::string_view name = {},
          std::span<const std::byte> payload = {});
// The same, and waits for the answer.
double ask(Command command);

enum class Memory { device, pinned };
// Returns nullptr if there is no room.
void* allocate(Memory kind, std::size_t bytes);
// Frees an allocation; ends the program if `address` is not a live allocation of that kind.
void give_back(Memory kind, void* address);
std::size_t device_bytes_total();
std::size_t device_bytes_free();

}  // namespace stand_in
