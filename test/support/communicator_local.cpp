// communicator_local.cpp - collectives between threads: every rank posts its operation, provides its input and takes
// its result at the time that LocalOrder defines; the rank that provides the last input computes all results
#include "test/support/communicator_local.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "kernels/base/error.h"
#include "kernels/device/memory.h"
#include "test/support/collective_results.h"

namespace llmc {
namespace {

// A rendezvous of all ranks, to which each contributes data for the others.
struct Meeting {
    std::string what;                 // set by the rank that arrives first
    std::vector<char> arrived;
    int first = 0, count = 0, left = 0;
};
struct HostMeeting : Meeting {
    std::vector<std::string> texts;
};
struct DeviceMeeting : Meeting {
    std::vector<Bytes> inputs, results;  // indexed by rank
    int brought = 0;
    bool wanted = false, done = false;   // wanted: a rank is waiting for it
};

struct Team;

// State shared by all threads.
struct Run {
    Run(int ranks, const LocalSettings& with) : settings(with), ended(ranks) {}

    void fail(int rank, const std::exception_ptr& thrown) {
        std::string what = "unknown";
        try {
            std::rethrow_exception(thrown);
        } catch (const std::exception& error) {
            what = error.what();
        } catch (...) {
        }
        const std::lock_guard lock(mutex);
        if (failure) return;
        failure = "rank " + std::to_string(rank) + " failed: " + what;
        first_thrown = thrown;
        changed.notify_all();
    }

    const LocalSettings settings;
    std::mutex mutex;  // guards the members below, and the teams
    // Notified only of changes that another rank may wait for: if 16 threads woke up for every step of every other one,
    // that would take most of the time.
    std::condition_variable changed;
    std::vector<char> ended;
    std::optional<std::string> failure;
    std::exception_ptr first_thrown;
    std::map<std::vector<int>, std::shared_ptr<Team>> parts;  // keyed by Team::path
};

// State shared by the threads of one communicator.
struct Team {
    Team(Run& all, std::vector<int> numbers, std::vector<int> by)
        : run(all), members(std::move(numbers)), size(int(members.size())), path(std::move(by)) {}

    std::string name(int rank) const { return "rank " + std::to_string(members[rank]); }
    template <class M>
    M& arrive(std::map<std::int64_t, M>& meetings, std::int64_t number, int rank, const std::string& what) {
        M& meeting = meetings[number];
        if (meeting.count == 0) {
            meeting.what = what;
            meeting.first = rank;
            meeting.arrived.resize(size);
        }
        if (meeting.what != what)
            throw Error(name(rank) + " calls " + what + " where " + name(meeting.first) + " called " + meeting.what);
        meeting.arrived[rank] = 1;
        if (++meeting.count == size) run.changed.notify_all();
        return meeting;
    }
    // Waits until holds() or an error. `meeting`, if not null, is the only rendezvous that `rank` waits for.
    template <class Holds>
    void wait(std::unique_lock<std::mutex>& lock, int rank, const std::string& what, const Meeting* meeting,
              Holds&& holds) {
        const auto until = std::chrono::steady_clock::now() + run.settings.patience;
        while (!holds()) {
            if (run.failure) throw Error(*run.failure, Blame::runtime);
            for (int other = 0; meeting && other < size; ++other)
                if (run.ended[members[other]] && !meeting->arrived[other])
                    throw Error(name(rank) + " waits in " + what + " for " + name(other) + ", which has ended",
                                Blame::runtime);
            if (run.changed.wait_until(lock, until) == std::cv_status::timeout && !holds())
                throw Error(name(rank) + " has waited " + std::to_string(run.settings.patience.count()) + " ms in " +
                                what, Blame::runtime);
        }
    }

    Run& run;
    const std::vector<int> members;  // ranks in the whole run
    const int size;
    const std::vector<int> path;     // for each nested split: its index within the parent communicator, and the color
    std::map<std::int64_t, HostMeeting> host;
    std::map<std::int64_t, DeviceMeeting> device;  // until every rank has taken its result
};

Bytes read_device(const std::byte* from, std::int64_t bytes) {
    Bytes copy(bytes);
    device::copy_to_host(copy.data(), from, bytes, nullptr);
    device::sync(nullptr);
    return copy;
}
void write_device(std::byte* to, const Bytes& bytes) {
    device::copy_to_device(to, bytes.data(), bytes.size(), nullptr);
    device::sync(nullptr);
}

class Local final : public Communicator {
public:
    Local(int rank, std::shared_ptr<Team> team, Local* whole = nullptr)
        : Communicator(rank, team->size, whole ? whole->place() : place_of(rank, team->run.settings), whole),
          shared_(std::move(team)) {
        if (prompt()) thread_ = std::thread([this] { run_promptly(); });
    }
    ~Local() override {
        end_all(leaves_alone());
        stop();
    }
    std::string describe() const override { return std::to_string(size()) + " ranks as threads"; }

    std::unique_ptr<Communicator> split(int color) override {
        std::vector<int> members, path = team_.path;
        int part_rank = 0;
        const auto colors = host_gather(std::to_string(color));
        for (int other = 0; other < size(); ++other) {
            if (colors[other] != std::to_string(color)) continue;
            if (other == rank()) part_rank = int(members.size());
            members.push_back(team_.members[other]);
        }
        path.insert(path.end(), {splits_++, color});
        std::shared_ptr<Team> part;
        {
            const std::lock_guard lock(team_.run.mutex);
            std::shared_ptr<Team>& shared = team_.run.parts[path];
            if (!shared) shared = std::make_shared<Team>(team_.run, members, path);
            part = shared;
        }
        return std::make_unique<Local>(part_rank, std::move(part), this);
    }

    void wait(device::StreamRef, CommEvent event) override { sync(event); }
    void sync(CommEvent event) override {
        if (prompt()) {
            // At first without the mutex: for ThreadSanitizer it would order this rank's earlier accesses before the
            // current writes of its thread, and hide a race.
            for (int i = 0; i < 1000 && taken_ < event.number; ++i)
                std::this_thread::sleep_for(std::chrono::microseconds(20));
            std::unique_lock lock(team_.run.mutex);
            syncs_ = true;
            team_.wait(lock, rank(), "a wait for its collectives", nullptr, [&] { return taken_ >= event.number; });
            syncs_ = false;
        } else {
            while (taken_ < event.number) take_next();
        }
    }
    void wait_for_all() { sync({posted_}); }
    void end_all(bool giving_up) noexcept override {
        try {
            if (!giving_up) wait_for_all();
        } catch (...) {  // run_ranks() rethrows it
            giving_up = true;
        }
        if (giving_up) stop();
    }

    using Communicator::host_reduce;
    void host_reduce(std::span<std::int64_t> values, HostReduction reduction) override {
        const auto all = meet("host_reduce of " + std::to_string(values.size()),
                              {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
        reduce_on_host(values, all, reduction);
    }
    std::vector<std::string> host_gather(std::string_view mine) override { return meet("host_gather", mine); }
    void barrier() override { meet("barrier", {}); }
    [[noreturn]] void abort(std::string_view reason, int exit_code) override {
        throw Error(std::string(reason), exit_code == 2 ? Blame::input : Blame::runtime);
    }

private:
    bool prompt() const { return team_.run.settings.order == LocalOrder::prompt; }

    std::vector<std::string> meet(const std::string& what, std::string_view mine) {
        std::unique_lock lock(team_.run.mutex);
        const std::int64_t number = host_meetings_++;
        HostMeeting& meeting = team_.arrive(team_.host, number, rank(), what);
        meeting.texts.resize(size());
        meeting.texts[rank()] = mine;
        while (true) {
            team_.wait(lock, rank(), what, &meeting, [&] { return meeting.count == size() || wanted(); });
            if (meeting.count == size()) break;
            lock.unlock();
            take_next();
            lock.lock();
        }
        auto texts = meeting.texts;
        if (++meeting.left == size()) team_.host.erase(number);
        return texts;
    }

    // Whether another rank waits for a collective that this rank has not executed yet, and would not execute before it
    // leaves the control plane.
    bool wanted() const { return !prompt() && posted_ > taken_ && team_.device.at(taken_).wanted; }

    void begin_group(device::StreamRef compute) override {
        {
            const std::lock_guard lock(team_.run.mutex);
            if (team_.run.failure) throw Error(*team_.run.failure, Blame::runtime);
        }
        require(!stop_, "a group of collectives", "started after another one was abandoned", "none");
        device::sync(compute);
    }
    CommEvent end_group() override { return {posted_}; }
    void enqueue(std::span<const Collective> operations) override {
        for (const Collective& op : operations) post(op);
    }

    void post(const Collective& op) {
        Pending pending{op, in_bytes(op, rank(), size()), out_bytes(op, rank(), size())};
        Bytes input;
        if (team_.run.settings.order == LocalOrder::early) {
            // The input cannot be read yet if a pending operation will write it.
            if (std::none_of(pending_.begin(), pending_.end(),
                             [&](const Pending& other) { return overlap(pending.in(), other.out()); })) {
                input = read_device(op.in, pending.in_bytes);
                pending.brought = true;
            }
            pending_.push_back(pending);
            poison(pending.out());
        } else {
            const std::lock_guard lock(team_.run.mutex);
            pending_.push_back(pending);
        }
        const std::lock_guard lock(team_.run.mutex);
        DeviceMeeting& meeting = team_.arrive(team_.device, posted_, rank(), name_of(op));
        meeting.inputs.resize(size());
        ++posted_;
        posted_one_.notify_one();
        if (pending.brought) bring(meeting, op, std::move(input));
    }

    // Holds the team's mutex for the duration of the sum, which is acceptable in tests.
    void bring(DeviceMeeting& meeting, const Collective& op, Bytes input) {
        meeting.inputs[rank()] = std::move(input);
        if (++meeting.brought < size()) return;
        meeting.results = results_of(op, meeting.inputs);
        meeting.done = true;
        team_.run.changed.notify_all();
    }

    // Provides this rank's input to the next collective, unless post() did, and takes the result.
    void take_next() {
        std::unique_lock lock(team_.run.mutex);
        const Pending pending = pending_.front();
        const std::int64_t number = taken_;
        DeviceMeeting& meeting = team_.device.at(number);
        if (!prompt() && !meeting.wanted) team_.run.changed.notify_all();
        meeting.wanted = true;
        if (!pending.brought) {
            lock.unlock();
            pause();
            Bytes input = read_device(pending.op.in, pending.in_bytes);
            lock.lock();
            bring(meeting, pending.op, std::move(input));
        }
        team_.wait(lock, rank(), meeting.what, &meeting, [&] { return meeting.done || stop_; });
        if (!meeting.done)
            throw Error(team_.name(rank()) + " leaves before " + meeting.what, Blame::runtime);
        const Bytes mine = std::move(meeting.results[rank()]);
        if (++meeting.left == size()) team_.device.erase(number);
        lock.unlock();
        pause();
        write_device(pending.op.out, mine);
        lock.lock();
        pending_.pop_front();
        ++taken_;
        if (syncs_) team_.run.changed.notify_all();
    }

    // A random delay right before memory is accessed, while the rank continues.
    void pause() {
        const auto longest = team_.run.settings.delay.count();
        if (prompt() && longest > 0)
            std::this_thread::sleep_for(
                std::chrono::microseconds(std::uniform_int_distribution<std::int64_t>(0, longest)(random_)));
    }

    void run_promptly() {
        try {
            while (true) {
                {
                    std::unique_lock lock(team_.run.mutex);
                    posted_one_.wait(lock, [&] { return stop_ || posted_ > taken_; });
                    if (stop_) return;
                }
                take_next();
            }
        } catch (...) {
            if (!stop_) team_.run.fail(team_.members[rank()], std::current_exception());
        }
    }
    void stop() {
        {
            const std::lock_guard lock(team_.run.mutex);
            stop_ = true;
        }
        team_.run.changed.notify_all();
        posted_one_.notify_one();
        if (thread_.joinable()) thread_.join();
    }

    using Range = std::span<const std::byte>;
    struct Pending {
        Collective op;
        std::int64_t in_bytes, out_bytes;
        bool brought = false;  // the input was read when posted
        Range in() const { return {op.in, std::size_t(in_bytes)}; }
        Range out() const { return {op.out, std::size_t(out_bytes)}; }
    };
    static bool overlap(Range a, Range b) {
        return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
    }

    // Fills the outputs of posted operations with NaN, except memory that a posted operation has yet to read.
    void poison(Range range) {
        for (const Pending& pending : pending_)
            if (!pending.brought && overlap(range, pending.in())) {
                const std::byte* first = std::max(range.data(), pending.op.in);
                const std::byte* last = std::min(range.data() + range.size(), pending.op.in + pending.in_bytes);
                poison({range.data(), first});
                poison({last, range.data() + range.size()});
                return;
            }
        write_device(const_cast<std::byte*>(range.data()), Bytes(range.size(), std::byte(0xff)));
    }

    static Place place_of(int rank, const LocalSettings& settings) {
        if (settings.ranks_per_node == 0) return {.local_rank = rank, .node = 0};
        return {.local_rank = rank % settings.ranks_per_node, .node = rank / settings.ranks_per_node};
    }

    const std::shared_ptr<Team> shared_;
    Team& team_ = *shared_;
    int splits_ = 0;
    std::int64_t host_meetings_ = 0;
    std::int64_t posted_ = 0;              // written under the team's mutex, like the members below
    std::atomic<std::int64_t> taken_ = 0;
    std::deque<Pending> pending_;          // posted, but not executed yet
    bool syncs_ = false;                   // sync() waits for an execution
    std::condition_variable posted_one_;   // wakes the thread
    std::atomic<bool> stop_ = false;
    std::mt19937 random_{team_.run.settings.seed * 1000 + unsigned(rank())};
    std::thread thread_;                   // only for LocalOrder::prompt
};

}  // namespace

void run_ranks(int ranks, const std::function<void(Communicator&)>& run, const LocalSettings& settings) {
    require(ranks >= 1, "the number of ranks", ranks, "at least 1");
    Run all(ranks, settings);
    std::vector<int> members(ranks);
    std::iota(members.begin(), members.end(), 0);
    const auto team = std::make_shared<Team>(all, members, std::vector<int>());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            omp_set_num_threads(1);
            try {
                Local communicator(rank, team);
                run(communicator);
                communicator.wait_for_all();
            } catch (...) {
                all.fail(rank, std::current_exception());
            }
            const std::lock_guard lock(all.mutex);
            all.ended[rank] = 1;
            all.changed.notify_all();
        });
    for (std::thread& thread : threads) thread.join();
    if (all.first_thrown) std::rethrow_exception(all.first_thrown);
}

}  // namespace llmc
