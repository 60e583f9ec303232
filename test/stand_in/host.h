// host.h - the host's interface to the device process
#pragma once
#include <string_view>

#include "test/stand_in/protocol.h"

namespace stand_in {

// Whether this is the host process.
bool is_host();

// Number of the call site of a library function: the same for the same call stack.
std::uint32_t call_site(std::string_view function);

// Sends a command and the data that follows it; starts the device before the first one.
void send(Command command, std::span<const Range> ranges = {}, std::string_view name = {},
          std::span<const std::byte> payload = {});
// The same, and waits for the answer.
double ask(Command command);

// Ends the program if the handle was released.
void require_there(const void* handle, std::string_view kind);

// Number of a stream or event.
std::uint32_t number_of(cudaStream_t stream);
std::uint32_t number_of(cudaEvent_t event);

enum class Memory { device, pinned };
// Returns nullptr if there is no room. `function`: the library function that allocates.
void* allocate(Memory kind, std::size_t bytes, std::string_view function);
// Frees an allocation; ends the program if `address` is not a live allocation of that kind.
void give_back(Memory kind, void* address, std::string_view function);
std::size_t device_bytes_total();
std::size_t device_bytes_free();

}  // namespace stand_in
