// host_link.h - the device's end of the sockets: sends messages to the host, and copies memory that only the host can
// access
#pragma once
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "test/stand_in/protocol.h"

namespace stand_in {

class HostLink {
public:
    HostLink(int commands, int done) : commands_(commands), done_(done) {}
    int commands() const { return commands_; }
    void send(const Message& message) const {
        while (::send(commands_, &message, sizeof message, MSG_NOSIGNAL) < 0)
            if (errno != EINTR) _exit(0);  // the host has ended
    }
    // Whether the host has answered message `number`; returns true once per message.
    bool is_done(std::uint64_t number, bool waits) {
        while (!finished_.contains(number)) {
            Done message;
            const ssize_t got = recv(done_, &message, sizeof message, waits ? 0 : MSG_DONTWAIT);
            if (got == 0) _exit(0);
            if (got < 0 && !waits) return false;
            if (got == sizeof message) finished_.insert(message.number);
        }
        finished_.erase(number);
        return true;
    }
    // Copies between memory of any kind; copies of private host memory use the bounce buffer.
    void copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
        const auto is_common = [](std::uint64_t address) {
            return is_device(reinterpret_cast<void*>(address)) || is_pinned(reinterpret_cast<void*>(address));
        };
        if (is_common(to) && is_common(from)) {
            std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
            return;
        }
        void* const bounce = reinterpret_cast<void*>(kPinnedBegin);
        for (std::size_t at = 0; at < bytes; at += kBounceBytes) {
            const std::size_t part = std::min(kBounceBytes, bytes - at);
            if (is_common(from)) std::memcpy(bounce, reinterpret_cast<const void*>(from + at), part);
            else ask(Message::Kind::to_bounce, from + at, part);
            if (is_common(to)) std::memcpy(reinterpret_cast<void*>(to + at), bounce, part);
            else ask(Message::Kind::from_bounce, to + at, part);
        }
    }

private:
    // Numbers of requests; host function calls use the much smaller numbers of their operations.
    static constexpr std::uint64_t kFirstRequest = std::uint64_t(1) << 62;

    void ask(Message::Kind kind, std::uint64_t address, std::size_t bytes) {
        Message message{};
        message.kind = kind;
        message.number = ++last_request_;
        message.argument = address;
        message.bytes = bytes;
        send(message);
        is_done(message.number, true);
    }

    const int commands_, done_;
    std::set<std::uint64_t> finished_;
    std::uint64_t last_request_ = kFirstRequest;
};

}  // namespace stand_in
