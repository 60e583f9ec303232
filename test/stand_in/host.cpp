// host.cpp - starts the device process, communicates with it, and tracks the program's allocations and calls
#include "test/stand_in/protocol.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "test/stand_in/addresses.h"

extern char** environ;

namespace stand_in {
namespace {

constexpr int kWrongExit = 96, kLeakExit = 97;

// No address is used twice, so freed memory stays inaccessible.
struct AddressRange {
    std::uintptr_t next, end;
    Allocations given{};
};

struct Host {
    std::mutex sending;  // guards the members up to `calls`
    int commands = -1, done = -1;
    pid_t device = 0;
    AddressRange device_memory{kDeviceBegin, kDeviceBegin + kDeviceBytes};
    AddressRange pinned_memory{kPinnedBegin, kPinnedBegin + kPinnedBytes};
    bool broken = false;  // by STAND_IN_FAIL=FUNCTION:N+
    std::map<std::string, std::int64_t, std::less<>> calls;

    std::mutex answering;
    std::condition_variable answered;
    std::map<std::uint64_t, double> answers;
    std::atomic<std::uint64_t> next_answer = 1;

    std::mutex calling;
    std::condition_variable called;
    std::deque<Message> to_call;
    std::atomic<bool> ending = false;

    AddressRange& memory(Memory kind) { return kind == Memory::device ? device_memory : pinned_memory; }
    void start();
    void read();
    void call();
};

thread_local bool in_host_function = false;

// Never destroyed: its threads use it until the process ends.
Host& host() {
    static Host& only = *new Host;
    return only;
}

bool is_host() {
    static const bool answer = !std::getenv(kDeviceVariable);
    return answer;
}

int common_memory(const char* name, std::uintptr_t begin, std::size_t bytes) {
    const int file = memfd_create(name, 0);
    if (file < 0 || ftruncate(file, off_t(bytes)) != 0) stop(std::string("no ") + name + ": " + std::strerror(errno));
    map_shared(begin, bytes, file);
    return file;
}

// Prints one line on standard error and ends the host.
[[noreturn]] void end(int exit_code, const std::string& what) {
    host().ending = true;
    std::fflush(nullptr);
    dprintf(2, "stand-in: %s\n", what.c_str());
    _exit(exit_code);
}

// The function and the number of its call that must fail in this process, from STAND_IN_FAIL; number 0: none. `stays`:
// every later call of any function fails, too.
struct Fault {
    char function[128] = "";
    long long number = 0;
    bool stays = false;
};
const Fault& fault() {
    static const Fault requested = [] {
        Fault told;
        const char* const text = std::getenv("STAND_IN_FAIL");
        const long long mine = setting("OMPI_COMM_WORLD_RANK", 0);
        char after = 0;
        long long rank = mine;
        if (text && std::sscanf(text, "%127[^:]:%lld%c%lld", told.function, &told.number, &after, &rank) < 2)
            stop(std::string("STAND_IN_FAIL is \"") + text + "\"; expected FUNCTION:N, FUNCTION:N+ or FUNCTION:N@RANK");
        told.stays = after == '+';
        return rank == mine ? told : Fault{};
    }();
    return requested;
}

std::string name_of(Memory kind) { return kind == Memory::device ? "device memory" : "pinned memory"; }

// The host accessed device memory, or freed pinned memory.
void explain_fault(int signal, siginfo_t* info, void*) {
    for (const Memory kind : {Memory::device, Memory::pinned})
        if (kind == Memory::device ? is_device(info->si_addr) : is_pinned(info->si_addr))
            stop("the host touches " + name_of(kind) + ", " +
                 host().memory(kind).given.describe(reinterpret_cast<std::uintptr_t>(info->si_addr)));
    ::signal(signal, SIG_DFL);
    raise(signal);
}

void Host::start() {
    int command_pair[2], done_pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, command_pair) != 0 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, done_pair))
        stop(std::string("no sockets to the device: ") + std::strerror(errno));
    for (const int socket : {command_pair[0], command_pair[1]}) {
        const int bytes = 4 << 20;
        setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
    fcntl(command_pair[0], F_SETFD, FD_CLOEXEC);
    fcntl(done_pair[0], F_SETFD, FD_CLOEXEC);
    const int memory_file = common_memory("device memory", kDeviceBegin, kDeviceBytes);
    const int pinned_file = common_memory("pinned memory", kPinnedBegin, kPinnedBytes);

    std::string variable = std::string(kDeviceVariable) + "=" + std::to_string(command_pair[1]) + "," +
                           std::to_string(done_pair[1]) + "," + std::to_string(memory_file) + "," +
                           std::to_string(pinned_file);
    std::vector<char*> environment;
    for (char** entry = environ; *entry; ++entry) environment.push_back(*entry);
    environment.push_back(variable.data());
    environment.push_back(nullptr);
    char program[] = "/proc/self/exe";
    char* arguments[] = {program, nullptr};
    if (const int failure = posix_spawn(&device, program, nullptr, nullptr, arguments, environment.data()))
        stop(std::string("the device process cannot start: ") + std::strerror(failure));
    prctl(PR_SET_PTRACER, device);  // it copies this process's memory
    for (const int file : {command_pair[1], done_pair[1], memory_file, pinned_file}) close(file);
    commands = command_pair[0];
    done = done_pair[0];

    struct sigaction action{};
    action.sa_sigaction = explain_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
    // The program's own threads handle its signals.
    sigset_t all, before;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { read(); }).detach();
    std::thread([this] { call(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Thread that handles messages of the device.
void Host::read() {
    Message message;
    for (;;) {
        const ssize_t got = recv(commands, &message, sizeof message, 0);
        if (got < 0 && errno == EINTR) continue;
        if (ending) return;
        if (got != sizeof message) {
            int status = 0;
            waitpid(device, &status, 0);
            stop("the device process ended" +
                 (WIFSIGNALED(status) ? std::string(" by signal ") + strsignal(WTERMSIG(status))
                                      : " with exit code " + std::to_string(WEXITSTATUS(status))));
        }
        switch (message.kind) {
            case Message::Kind::answer: {
                const std::lock_guard lock(answering);
                answers[message.number] = message.value;
                answered.notify_all();
                break;
            }
            case Message::Kind::call_host: {
                const std::lock_guard lock(calling);
                to_call.push_back(message);
                called.notify_all();
                break;
            }
            case Message::Kind::wrong: stop(message.text);
        }
    }
}

// Thread that runs the functions of cudaLaunchHostFunc, one after the other.
void Host::call() {
    for (;;) {
        std::unique_lock lock(calling);
        called.wait(lock, [&] { return !to_call.empty(); });
        const Message message = to_call.front();
        to_call.pop_front();
        lock.unlock();
        in_host_function = true;
        reinterpret_cast<cudaHostFn_t>(message.function)(reinterpret_cast<void*>(message.argument));
        in_host_function = false;
        const Done ended{message.number};
        if (::send(done, &ended, sizeof ended, MSG_NOSIGNAL) < 0 && !ending) _exit(kWrongExit);
    }
}

// Runs at the end of the host process, after destructors.
[[gnu::destructor]] void look_for_leaks() {
    if (!is_host()) return;
    Host& mine = host();
    if (mine.device != 0) ask({.kind = Command::Kind::drain_device});  // reports errors of pending work, too
    mine.ending = true;
    if (const char* const file = std::getenv("STAND_IN_CALLS")) {
        std::ofstream out(std::string(file) + "." + std::to_string(getpid()));
        for (const auto& [function, count] : mine.calls) out << function << ' ' << count << '\n';
    }
    for (const Memory kind : {Memory::device, Memory::pinned})
        if (const std::size_t count = mine.memory(kind).given.live())
            end(kLeakExit, "not freed at exit: " + std::to_string(count) + " x allocation of " + name_of(kind));
}

}  // namespace

std::int64_t setting(const char* variable, std::int64_t otherwise) {
    const char* const text = std::getenv(variable);
    return text ? std::atoll(text) : otherwise;
}

void stop(const std::string& what) {
    if (is_host()) end(kWrongExit, what);
    report_wrong(what);
}

bool failure_injected(std::string_view function) {
    if (!is_host()) return false;
    if (in_host_function) stop(std::string(function) + " is called by a function of cudaLaunchHostFunc");
    Host& mine = host();
    const std::lock_guard lock(mine.sending);
    const auto known = mine.calls.find(function);
    const std::int64_t number = ++(known != mine.calls.end() ? known->second : mine.calls[std::string(function)]);
    const bool fails = number == fault().number && function == fault().function;
    mine.broken = mine.broken || (fails && fault().stays);
    return fails || mine.broken;
}

void send(Command command, std::span<const Range> ranges, std::string_view name, std::span<const std::byte> payload) {
    command.range_count = std::uint32_t(ranges.size());
    command.name_bytes = std::uint32_t(name.size());
    command.payload_bytes = std::uint32_t(payload.size());
    iovec parts[] = {{&command, sizeof command},
                     {const_cast<Range*>(ranges.data()), ranges.size_bytes()},
                     {const_cast<char*>(name.data()), name.size()},
                     {const_cast<std::byte*>(payload.data()), payload.size()}};
    std::size_t bytes = 0;
    for (const iovec& part : parts) bytes += part.iov_len;
    if (bytes > kMostCommand) stop(std::string(name) + " needs more bytes than one message to the device can have");
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = std::size(parts);
    Host& mine = host();
    const std::lock_guard lock(mine.sending);
    if (mine.device == 0) mine.start();
    while (sendmsg(mine.commands, &message, MSG_NOSIGNAL) < 0) {
        if (errno == EINTR) continue;
        if (errno == EPIPE || errno == ECONNRESET) sleep(5);  // the reading thread reports the cause
        stop(std::string("no connection to the device: ") + std::strerror(errno));
    }
}

double ask(Command command) {
    Host& mine = host();
    command.answer = mine.next_answer++;
    send(command);
    std::unique_lock lock(mine.answering);
    mine.answered.wait(lock, [&] { return mine.answers.contains(command.answer); });
    return mine.answers.extract(command.answer).mapped();
}

// An allocation ends, rounded to its alignment, at the end of a page; the next page is inaccessible.
void* allocate(Memory kind, std::size_t bytes) {
    std::uintptr_t address = 0;
    {
        const std::lock_guard lock(host().sending);
        AddressRange& memory = host().memory(kind);
        const std::size_t pages = round_up(bytes, kPage);
        if (memory.next + pages + kPage > memory.end ||
            (kind == Memory::device && bytes > device_bytes_total() - memory.given.live_bytes()))
            return nullptr;
        address = memory.next + pages - round_up(bytes, kDeviceAlignment);
        memory.next += pages + kPage;
        memory.given.add(address, bytes);
    }
    send({.kind = Command::Kind::allocate, .to = address, .bytes = bytes});
    if (kind == Memory::pinned) protect(address, bytes, PROT_READ | PROT_WRITE);
    return reinterpret_cast<void*>(address);
}

void give_back(Memory kind, void* memory) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    std::unique_lock lock(host().sending);
    const std::size_t bytes = host().memory(kind).given.remove(address);
    lock.unlock();
    if (bytes == 0) stop("memory is freed that is no allocation of " + name_of(kind) + ", or no longer");
    send({.kind = Command::Kind::free, .to = address, .bytes = bytes});
    if (kind == Memory::pinned) protect(address, bytes, PROT_NONE);
}

// 16 GiB, or 1/8 of this machine's memory if that is less: tracking accesses takes six times as many bytes.
std::size_t device_bytes_total() {
    static const std::size_t fits = std::min<std::size_t>(
        std::size_t(16) << 30, std::size_t(sysconf(_SC_PHYS_PAGES)) * std::size_t(sysconf(_SC_PAGE_SIZE)) / 8);
    return fits;
}
std::size_t device_bytes_free() {
    const std::lock_guard lock(host().sending);
    return device_bytes_total() - host().device_memory.given.live_bytes();
}

}  // namespace stand_in
