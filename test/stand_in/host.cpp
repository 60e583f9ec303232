// host.cpp - starts the device process, communicates with it, and tracks the program's allocations, handles and calls
#include "test/stand_in/host.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "test/stand_in/addresses.h"
#include "test/stand_in/sites.h"

extern char** environ;

namespace stand_in {
namespace {

constexpr int kWrongExit = 96, kLeakExit = 97;

struct Host {
    std::mutex sending;  // guards the members up to `calls`
    int commands = -1, done = -1;
    pid_t device = 0;
    Addresses device_memory{kDeviceBegin, kDeviceBytes};
    Addresses pinned_memory{kPinnedBegin + kBounceBytes, kPinnedBytes - kBounceBytes};
    std::map<const void*, std::string> handles;
    std::set<const void*> dead;
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

    Addresses& addresses(Memory kind) { return kind == Memory::device ? device_memory : pinned_memory; }
    void start();
    void read();
    void call();
    void send_done(std::uint64_t number) {
        const Done message{number};
        if (::send(done, &message, sizeof message, MSG_NOSIGNAL) < 0 && !ending) _exit(kWrongExit);
    }
};

thread_local bool in_host_function = false;
thread_local const char* copying = nullptr;  // "reads" or "writes": direction of a copy of host memory

// Never destroyed: its threads use it until the process ends.
Host& host() {
    static Host& only = *new Host;
    return only;
}

int common_memory(const char* name, std::uintptr_t begin, std::size_t bytes, int protection) {
    const int file = memfd_create(name, 0);
    void* const wanted = reinterpret_cast<void*>(begin);
    if (file < 0 || ftruncate(file, off_t(bytes)) != 0 ||
        mmap(wanted, bytes, protection, MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, file, 0) != wanted)
        stop(std::string("the addresses are not available for ") + name + ": " + std::strerror(errno));
    return file;
}

std::string describe_sites(std::span<const std::uint32_t> sites) {
    std::string text;
    for (const std::uint32_t site : sites)
        if (site > 0) text += "; " + describe_site(site);
    return text;
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
    std::string function;
    std::int64_t number = 0;
    bool stays = false;
};
const Fault& fault() {
    static const Fault requested = [] {
        const char* const text = std::getenv("STAND_IN_FAIL");
        const long long mine = setting("OMPI_COMM_WORLD_RANK", 0);
        char function[128] = "";
        long long number = 0, rank = mine;
        int length = 0;
        if (text) std::sscanf(text, "%127[^:]:%lld%n", function, &number, &length);
        const bool stays = text && text[length] == '+';
        if (text) std::sscanf(text + length + stays, "@%lld", &rank);
        return rank == mine ? Fault{function, number, stays} : Fault{};
    }();
    return requested;
}

std::string name_of(Memory kind) { return kind == Memory::device ? "device memory" : "pinned memory"; }

// "; cudaMalloc at main; cudaFree at main": call sites of the allocation of `address`.
std::string history_of(Memory kind, std::uintptr_t address) {
    const Allocation found = host().addresses(kind).given().at_or_before(address);
    return describe_sites(std::array{found.allocated_at, found.freed_at});
}

// The host accessed device memory, or freed pinned memory.
void explain_fault(int signal, siginfo_t* info, void*) {
    if (is_device(info->si_addr) || is_pinned(info->si_addr)) {
        const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
        const Memory kind = is_device(info->si_addr) ? Memory::device : Memory::pinned;
        stop("the host touches " + name_of(kind) + ", " + host().addresses(kind).given().describe(address) + ", at " +
             places(frames_here()) + history_of(kind, address));
    }
    if (copying) stop(std::string("a copy ") + copying + " host memory that is not allocated");
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
    const int memory_file = common_memory("device memory", kDeviceBegin, kDeviceBytes, PROT_NONE);
    const int pinned_file = common_memory("pinned memory", kPinnedBegin, kPinnedBytes, PROT_NONE);
    mprotect(reinterpret_cast<void*>(kPinnedBegin), kBounceBytes, PROT_READ | PROT_WRITE);

    std::string variable = std::string(kDeviceVariable) + "=" + std::to_string(command_pair[1]) + "," +
                           std::to_string(done_pair[1]) + "," + std::to_string(memory_file) + "," +
                           std::to_string(pinned_file);
    std::vector<char*> environment;
    for (char** entry = environ; *entry; ++entry) environment.push_back(*entry);
    environment.push_back(variable.data());
    environment.push_back(nullptr);
    char program[4096];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) stop("/proc/self/exe does not name this program");
    program[length] = 0;
    char* arguments[] = {program, nullptr};
    if (const int failure = posix_spawn(&device, program, nullptr, nullptr, arguments, environment.data()))
        stop(std::string("the device process cannot start: ") + std::strerror(failure));
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
        void* const bounce = reinterpret_cast<void*>(kPinnedBegin);
        void* const memory = reinterpret_cast<void*>(message.argument);
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
            case Message::Kind::to_bounce:
                copying = "reads";
                std::memcpy(bounce, memory, message.bytes);
                copying = nullptr;
                send_done(message.number);
                break;
            case Message::Kind::from_bounce:
                copying = "writes";
                std::memcpy(memory, bounce, message.bytes);
                copying = nullptr;
                send_done(message.number);
                break;
            case Message::Kind::wrong: stop(message.text + describe_sites(message.sites));
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
        send_done(message.number);
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
    std::map<std::string, int> left;
    for (const auto& [handle, kind] : mine.handles) ++left[kind];
    for (const Memory kind : {Memory::device, Memory::pinned})
        if (const auto count = mine.addresses(kind).given().live()) left["allocation of " + name_of(kind)] = int(count);
    if (left.empty()) return;
    std::string text = "not freed at exit:";
    for (const auto& [kind, count] : left) text += ' ' + std::to_string(count) + " x " + kind;
    end(kLeakExit, text);
}

}  // namespace

bool is_host() {
    static const bool answer = !std::getenv(kDeviceVariable);
    return answer;
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

void made(const void* handle, std::string_view kind) {
    Host& mine = host();
    const std::lock_guard lock(mine.sending);
    mine.dead.erase(handle);
    mine.handles[handle] = kind;
}

void released(const void* handle, std::string_view kind) {
    Host& mine = host();
    std::unique_lock lock(mine.sending);
    const auto found = mine.handles.find(handle);
    if (found != mine.handles.end() && found->second == kind) {
        mine.handles.erase(found);
        mine.dead.insert(handle);
        return;
    }
    const bool twice = mine.dead.contains(handle);
    lock.unlock();
    stop("a " + std::string(kind) + " is released " + (twice ? "twice" : "that was never created") + ", at " +
         places(frames_here()));
}

void require_there(const void* handle, std::string_view kind) {
    std::unique_lock lock(host().sending);
    if (!host().dead.contains(handle)) return;
    lock.unlock();
    stop("a " + std::string(kind) + " is used after its release, at " + places(frames_here()));
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
        if (errno == EPIPE || errno == ECONNRESET) {  // the reading thread reports the cause
            sleep(5);
        }
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

void* allocate(Memory kind, std::size_t bytes, std::string_view function) {
    Host& mine = host();
    const std::uint32_t site = call_site(function);
    void* memory = nullptr;
    {
        const std::lock_guard lock(mine.sending);
        if (kind == Memory::device && bytes > device_bytes_total() - mine.device_memory.given().live_bytes())
            return nullptr;
        memory = mine.addresses(kind).take(bytes, site);
    }
    if (!memory) return nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    send({.kind = Command::Kind::allocate, .site = site, .to = address, .bytes = bytes});
    if (kind == Memory::pinned) protect(address, bytes, PROT_READ | PROT_WRITE);
    return memory;
}

void give_back(Memory kind, void* memory, std::string_view function) {
    Host& mine = host();
    const std::uint32_t site = call_site(function);
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    std::unique_lock lock(mine.sending);
    const std::size_t bytes = mine.addresses(kind).give_back(memory, site);
    lock.unlock();
    if (bytes == 0) {
        const bool is_of_kind = kind == Memory::device ? is_device(memory) : is_pinned(memory);
        stop(std::string(function) + " of " +
             (is_of_kind ? mine.addresses(kind).given().describe(address) : "an address outside of " + name_of(kind)) +
             ", at " + places(frames_here()) + (is_of_kind ? history_of(kind, address) : ""));
    }
    send({.kind = Command::Kind::free, .site = site, .to = address, .bytes = bytes});
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
    return device_bytes_total() - host().device_memory.given().live_bytes();
}

}  // namespace stand_in
