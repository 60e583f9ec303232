// device.cpp - the device process: its streams, and the schedule that runs their operations
//
// Operations of a stream run in order; an operation after a wait for an event runs once the event is done. The
// schedule, STAND_IN_SCHEDULE, chooses everything else:
//   eager    the oldest operation, as soon as it can run (default)
//   late     only what the host waits for and its dependencies; the rest once the host has been idle for a while
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "test/stand_in/accesses.h"
#include "test/stand_in/addresses.h"

namespace stand_in {
namespace {

constexpr int kSilenceMilliseconds = 3;
constexpr std::size_t kMostPoisoned = std::size_t(64) << 20;

// The device's end of the sockets: sends messages to the host, its parent process, and copies its private memory.
class HostLink {
public:
    HostLink(int commands, int done) : commands_(commands), done_(done) {}
    int commands() const { return commands_; }
    void send(const Message& message) const {
        while (::send(commands_, &message, sizeof message, MSG_NOSIGNAL) < 0)
            if (errno != EINTR) _exit(0);  // the host has ended
    }
    // Whether the host has answered message `number`; returns true once per message.
    bool is_done(std::uint64_t number) {
        Done message;
        ssize_t got = 0;
        while ((got = recv(done_, &message, sizeof message, MSG_DONTWAIT)) == sizeof message)
            finished_.insert(message.number);
        if (got == 0) _exit(0);
        return finished_.erase(number) > 0;
    }
    // Copies between memory of any kind; one side at most is private to the host.
    void copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) const {
        while (bytes > 0) {
            const auto out = reinterpret_cast<void*>(to), in = reinterpret_cast<void*>(from);
            const auto is_common = [](void* address) { return is_device(address) || is_pinned(address); };
            ssize_t done = ssize_t(bytes);
            if (!is_common(in)) done = pread(host_memory_, out, bytes, off_t(from));
            else if (!is_common(out)) done = pwrite(host_memory_, in, bytes, off_t(to));
            else std::memmove(out, in, bytes);
            if (done <= 0) report_wrong(std::string("a copy cannot access the host's memory: ") + std::strerror(errno));
            to += std::uint64_t(done), from += std::uint64_t(done), bytes -= std::size_t(done);
        }
    }

private:
    const int commands_, done_, host_memory_ = open(("/proc/" + std::to_string(getppid()) + "/mem").c_str(), O_RDWR);
    std::set<std::uint64_t> finished_;
};

// Result of cudaEventRecord: done once its stream reaches it.
struct Point {
    std::uint32_t stream = 0;
    bool done = false;
    double seconds = 0;  // of the device's clock
    Clock before;        // precedes operations that wait for it
};

struct Pending {
    Command command;
    std::uint32_t operation = 0;
    std::uint64_t age = 0;  // position among all commands
    std::vector<Range> ranges;
    std::vector<std::byte> payload;
    std::shared_ptr<Point> point;
    bool begun = false;
};

struct Stream {
    std::deque<Pending> pending;
    std::uint32_t count = 0;  // operations so far
    Clock before;             // precedes its next operation
    double seconds = 0;
};

// A wait of the host.
struct Wait {
    std::uint64_t answer;
    std::vector<std::shared_ptr<Point>> points;
    bool orders = true;  // later commands of the host come after the points
};

class Device {
public:
    Device(int commands, int done) : host_link_(commands, done) {
        const char* const schedule = std::getenv("STAND_IN_SCHEDULE");
        late_ = schedule && schedule == std::string_view("late");
    }
    void run() {
        while (receive(milliseconds_to_wait())) {
            answer_waits();  // completed waits are answered before more work runs
            if (may_run()) run_one();
            answer_waits();
        }
    }
    void send(const Message& message) { host_link_.send(message); }

private:
    // How long to wait for the host, since no work can run.
    int milliseconds_to_wait() {
        if (!can_run_) return polls_ ? 1 : -1;
        return may_run() ? 0 : kSilenceMilliseconds;
    }
    // Whether the schedule lets work run now.
    bool may_run() const { return !late_ || !waits_.empty() || silent_; }

    // Receives a command if one arrives in time. Returns false if the host has ended.
    bool receive(int milliseconds) {
        pollfd file{host_link_.commands(), POLLIN, 0};
        const int ready = poll(&file, 1, milliseconds);
        silent_ = ready == 0;
        if (ready <= 0) return true;
        const ssize_t got = recv(host_link_.commands(), buffer_.data(), buffer_.size(), 0);
        if (got <= 0) return false;
        take();
        return true;
    }

    void take() {
        Command command;
        const std::byte* next = buffer_.data();
        const auto read = [&](void* to, std::size_t bytes) {
            std::memcpy(to, next, bytes);
            next += bytes;
        };
        read(&command, sizeof command);
        using Kind = Command::Kind;
        switch (command.kind) {
            case Kind::allocate: return allocate(command.to, command.bytes);
            case Kind::free: return free(command.to, command.bytes);
            case Kind::destroy_event: events_.erase(command.event); return;
            case Kind::sync_stream: waits_.push_back({command.answer, {end_of(command.stream)}}); return;
            case Kind::sync_event:
                waits_.push_back({command.answer, {}});
                if (const auto known = events_.find(command.event); known != events_.end())
                    waits_.back().points.push_back(known->second);
                return;
            case Kind::sync_device:
            case Kind::drain_device:
                waits_.push_back({command.answer, {}, command.kind == Kind::sync_device});
                for (auto& [number, stream] : streams_) waits_.back().points.push_back(end_of(number));
                return;
            case Kind::query_event: return answer_query(command);
            case Kind::elapsed: return answer_elapsed(command);
            default: break;  // an operation of a stream
        }
        Pending pending{.command = command, .age = ++age_};
        pending.ranges.resize(command.range_count);
        read(pending.ranges.data(), command.range_count * sizeof(Range));
        std::string name(command.name_bytes, ' ');
        read(name.data(), name.size());
        pending.payload.resize(command.payload_bytes);
        read(pending.payload.data(), command.payload_bytes);
        enqueue(std::move(pending), std::move(name));
    }

    void enqueue(Pending pending, std::string name) {
        const Command& command = pending.command;
        Stream& stream = streams_[command.stream];
        // What the host has waited for precedes all that it enqueues from then on.
        stream.before.join(host_);
        if (command.kind == Command::Kind::wait_for_event) {
            const auto known = events_.find(command.event);
            if (known == events_.end()) return;  // never recorded counts as done
            pending.point = known->second;
            stream.before.join(known->second->before);
        }
        stream.before.set(command.stream, ++stream.count);
        pending.operation = remember({std::move(name), command.stream, stream.count, stream.before});
        if (command.kind == Command::Kind::record) {
            pending.point = std::make_shared<Point>(command.stream, false, 0.0, stream.before);
            events_[command.event] = pending.point;
        }
        stream.pending.push_back(std::move(pending));
        can_run_ = true;
    }

    // ---- memory

    // Uninitialized device memory is NaN. Pinned memory is unchanged, since accesses of the host are not tracked.
    void allocate(std::uint64_t address, std::size_t bytes) {
        void* const memory = reinterpret_cast<void*>(address);
        protect(address, bytes, PROT_READ | PROT_WRITE);
        if (is_device(memory) && bytes <= kMostPoisoned) std::memset(memory, 0xff, bytes);
        memory_is_allocated(address, bytes);
    }
    void free(std::uint64_t address, std::size_t bytes) {
        const auto [begin, length] = pages_of(address, bytes);
        madvise(reinterpret_cast<void*>(begin), length, MADV_REMOVE);
        protect(address, bytes, PROT_NONE);
        memory_is_freed(address, bytes);
    }

    // ---- what the host waits for

    // A point after all work of the stream.
    std::shared_ptr<Point> end_of(std::uint32_t number) {
        Stream& stream = streams_[number];
        auto point = std::make_shared<Point>(number, stream.pending.empty(), stream.seconds, stream.before);
        if (!point->done) {
            Pending pending{.command = {.kind = Command::Kind::record, .stream = number}, .age = ++age_};
            pending.point = point;
            stream.pending.push_back(std::move(pending));
        }
        return point;
    }
    static bool is_over(const Wait& wait) {
        return std::ranges::all_of(wait.points, [](const auto& point) { return point->done; });
    }
    void answer_waits() {
        std::erase_if(waits_, [&](const Wait& wait) {
            if (!is_over(wait)) return false;
            if (wait.orders)
                for (const auto& point : wait.points) host_.join(point->before);
            answer(wait.answer, 0);
            return true;
        });
    }
    void answer(std::uint64_t number, double value) {
        send({.kind = Message::Kind::answer, .number = number, .value = value});
    }
    void answer_query(const Command& command) {
        const auto known = events_.find(command.event);
        const bool done = known == events_.end() || known->second->done;
        if (done && known != events_.end()) host_.join(known->second->before);
        answer(command.answer, done);
        if (!done) run_one();  // makes progress for a host that polls
    }
    void answer_elapsed(const Command& command) {
        const auto one = events_.find(command.event), two = events_.find(command.other_event);
        const bool both = one != events_.end() && two != events_.end();
        if (!both) return answer(command.answer, kNeverRecorded);
        if (!one->second->done || !two->second->done) return answer(command.answer, kNotDone);
        answer(command.answer, two->second->seconds - one->second->seconds);
    }

    // ---- the schedule

    bool is_ready(const Stream& stream) const {
        if (stream.pending.empty()) return false;
        const Pending& head = stream.pending.front();
        return head.command.kind != Command::Kind::wait_for_event || head.point->done;
    }

    // Runs one operation that can run, if any; skips those that wait for another process.
    void run_one() {
        std::vector<std::uint32_t> order;
        for (const auto& [number, stream] : streams_)
            if (is_ready(stream)) order.push_back(number);
        const auto age = [&](std::uint32_t number) { return streams_[number].pending.front().age; };
        if (late_) std::ranges::sort(order, std::greater(), age);
        else std::ranges::sort(order, {}, age);
        if (late_ && !waits_.empty()) {
            const auto& points = waits_.front().points;
            const auto point = std::ranges::find(points, false, [](const auto& one) { return one->done; });
            const std::uint32_t needed = point == points.end() ? 0 : stream_needed((*point)->stream);
            std::ranges::stable_partition(order, [&](std::uint32_t number) { return number == needed; });
        }
        polls_ = can_run_ = false;
        for (const std::uint32_t number : order) {
            Stream& stream = streams_[number];
            if (!run(stream.pending.front(), stream)) {
                polls_ = true;
                continue;
            }
            stream.pending.pop_front();
            can_run_ = true;
            return;
        }
    }
    // The stream whose head blocks this one.
    std::uint32_t stream_needed(std::uint32_t number) {
        for (std::size_t steps = 0; steps < streams_.size(); ++steps) {
            const Stream& stream = streams_[number];
            if (stream.pending.empty() || is_ready(stream)) break;
            number = stream.pending.front().point->stream;
        }
        return number;
    }

    // Returns whether the operation is done.
    bool run(Pending& pending, Stream& stream) {
        const Command& command = pending.command;
        const auto to = reinterpret_cast<void*>(command.to);
        const auto from = reinterpret_cast<const void*>(command.from);
        if (pending.operation) running(pending.operation);
        if (!pending.begun)
            for (const Range& range : pending.ranges) note_access(range.begin, range.bytes, range.written);
        const bool begins = !std::exchange(pending.begun, true);
        switch (command.kind) {
            case Command::Kind::work:
                if (!reinterpret_cast<Work>(std::uintptr_t(program_begin) + std::uintptr_t(command.work))(
                        pending.payload.data()))
                    return false;
                break;
            case Command::Kind::copy:
                note_access(from, command.bytes, false);
                note_access(to, command.bytes, true);
                host_link_.copy(command.to, command.from, command.bytes);
                break;
            case Command::Kind::fill:
                note_access(to, command.bytes, true);
                std::memset(to, int(command.value), command.bytes);
                break;
            case Command::Kind::record:
                pending.point->done = true;
                pending.point->seconds = stream.seconds;
                break;
            case Command::Kind::wait_for_event:
                stream.seconds = std::max(stream.seconds, pending.point->seconds);
                break;
            case Command::Kind::call_host:
                if (begins)
                    send({.kind = Message::Kind::call_host, .number = pending.age, .function = command.from,
                          .argument = command.to});
                if (!host_link_.is_done(pending.age)) return false;
                break;
            default: break;
        }
        stream.seconds += command.seconds;
        return true;
    }

    HostLink host_link_;
    bool late_;
    std::vector<std::byte> buffer_ = std::vector<std::byte>(kMostCommand);
    std::map<std::uint32_t, Stream> streams_;
    std::map<std::uint32_t, std::shared_ptr<Point>> events_;
    std::vector<Wait> waits_;
    Clock host_;
    std::uint64_t age_ = 0;
    bool can_run_ = false;  // operations are left that may be able to run
    bool polls_ = false;    // an operation waits for another process
    bool silent_ = false;   // the host has been idle for a while
};

Device* device = nullptr;

void explain_fault(int, siginfo_t* info, void*) {
    if (is_device(info->si_addr) || is_pinned(info->si_addr))
        report_memory(is_device(info->si_addr) ? "touches device memory" : "touches pinned memory",
                      reinterpret_cast<std::uintptr_t>(info->si_addr));
    report_wrong("an operation of the device touches host memory or unmapped memory");
}

}  // namespace

void report_wrong(const std::string& what) {
    Message message{.kind = Message::Kind::wrong};
    what.copy(message.text, sizeof message.text - 1);
    if (device) {
        device->send(message);
        sleep(60);  // the host ends both processes
    }
    dprintf(2, "stand-in: %s\n", message.text);
    _exit(1);
}

int run_device() {
    int commands = -1, done = -1, memory = -1, pinned = -1;
    if (std::sscanf(std::getenv(kDeviceVariable), "%d,%d,%d,%d", &commands, &done, &memory, &pinned) != 4)
        stop(std::string(kDeviceVariable) + " is not set by this program");
    map_shared(kDeviceBegin, kDeviceBytes, memory);
    map_shared(kPinnedBegin, kPinnedBytes, pinned);
    // The host handles signals to the program, for example from a terminal.
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) signal(number, SIG_IGN);
    struct sigaction action{};
    action.sa_sigaction = explain_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
    running(0);
    device = new Device(commands, done);
    device->run();
    std::_Exit(0);
}

}  // namespace stand_in
