// host.h - the host's side of the device process
#pragma once
#include <string_view>

#include "test/stand_in/protocol.h"

namespace stand_in {

// Whether this is the host process.
bool is_host();

// The place in the program that calls a function of the library: a number that stays the same for the same calls on the
// way there.
std::uint32_t call_site(std::string_view function);

// What STAND_IN_MUTATE="KEY:KIND" makes of the calls at a site (dev/mutate_events.sh); KEY from STAND_IN_SITES=FILE,
// to which a host that ends writes "KEY CALLS FUNCTION PLACE" for each site that was asked for.
enum class Mutation { none, skip, other_stream };
Mutation mutation_of(std::uint32_t site);

// Sends the command, with what follows it; starts the device before the first one.
void send(Command command, std::span<const Range> ranges = {}, std::string_view name = {},
          std::span<const std::byte> payload = {});
// The same, and waits for the answer.
double ask(Command command);

// Ends the program where the handle was given back.
void require_there(const void* handle, std::string_view kind);

// Number of a stream or event.
std::uint32_t number_of(cudaStream_t stream);
std::uint32_t number_of(cudaEvent_t event);

enum class Memory { device, pinned };
// For a function of the library. Null where there is no room.
void* allocate(Memory kind, std::size_t bytes, std::string_view function);
// Ends the program where the address is no allocation's of that kind, or was given back before.
void give_back(Memory kind, void* address, std::string_view function);
std::size_t device_bytes_total();
std::size_t device_bytes_free();

}  // namespace stand_in
