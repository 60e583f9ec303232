// host_link.h - the device's side of the sockets: messages to the host, and copies of memory that only the host can
// touch
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
    // Whether the host has done what the message of that number asked for, once for each.
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
    // Between memory of any kind; what is the host's own passes through the bounce memory.
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
    // Numbers of questions; those of calls of the host's functions are the operations' own, far below.
    static constexpr std::uint64_t kFirstQuestion = std::uint64_t(1) << 62;

    void ask(Message::Kind kind, std::uint64_t address, std::size_t bytes) {
        Message message{};
        message.kind = kind;
        message.number = ++last_question_;
        message.argument = address;
        message.bytes = bytes;
        send(message);
        is_done(message.number, true);
    }

    const int commands_, done_;
    std::set<std::uint64_t> finished_;
    std::uint64_t last_question_ = kFirstQuestion;
};

}  // namespace stand_in
