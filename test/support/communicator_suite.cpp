// communicator_suite.cpp - sums, moves and rejected calls of every collective, compared with plain loops
#include "test/support/communicator_suite.h"

#include <thread>

#include "test/support/support.h"

using namespace llmc;
using namespace test;

namespace {

template <class T> T number(std::uint32_t bits);
// Integers, whose sum is exact in any order, or numbers of very different magnitude, whose sum depends on the order.
template <> float number(std::uint32_t bits) {
    return bits & 1 ? float(int(bits >> 20)) : std::ldexp(float(int(bits >> 8) - (1 << 23)), int(bits & 31) - 24);
}
template <> bf16 number(std::uint32_t bits) { return kernels::bf16_from_float(number<float>(bits)); }
template <> std::byte number(std::uint32_t bits) { return std::byte(bits >> 11); }

// The contribution of rank `rank`; every rank can compute all contributions.
template <class T> std::vector<T> contribution(std::int64_t elements, int rank, unsigned salt) {
    std::vector<T> values(elements);
    std::uint32_t bits = 0x9e3779b9u * (salt * 64 + rank + 1);
    for (T& x : values) {
        bits ^= bits << 13;
        bits ^= bits >> 17;
        bits ^= bits << 5;
        x = number<T>(bits);
    }
    return values;
}

template <class T> std::vector<T> sum(std::int64_t elements, int ranks, unsigned salt) {
    std::vector<float> sums(elements);
    for (int rank = 0; rank < ranks; ++rank) {
        const auto x = contribution<T>(elements, rank, salt);
        for (std::int64_t i = 0; i < elements; ++i) sums[i] = (rank == 0 ? 0.0f : sums[i]) + float(widen(x[i]));
    }
    std::vector<T> rounded(elements);
    for (std::int64_t i = 0; i < elements; ++i) rounded[i] = narrow<T>(sums[i]);
    return rounded;
}

template <class T> std::vector<T> part(const std::vector<T>& whole, ElementRange shard) {
    return {whole.begin() + shard.first, whole.begin() + shard.first + shard.size};
}

// Runs one group of the collectives that `enqueue` calls, and makes the null stream wait for it.
template <class Enqueue> void group(Communicator& comm, Enqueue&& enqueue) {
    comm.group_begin(nullptr);
    enqueue();
    comm.wait(nullptr, comm.group_end());
}

template <class T> void check_sums(Communicator& comm, std::int64_t elements, unsigned salt) {
    const std::string of = " of " + std::to_string(elements) + " elements of " + std::to_string(sizeof(T)) + " bytes";
    const ElementRange shard = shard_of(elements, comm.rank(), comm.size());
    const auto mine = contribution<T>(elements, comm.rank(), salt), want = sum<T>(elements, comm.size(), salt);

    const auto input = on_device(mine);
    const auto shard_sum = poisoned<T>(shard.size);
    group(comm, [&] { comm.reduce_scatter(shard_sum.span(), input.span()); });
    expect(same_bits(shard_sum.download(nullptr), part(want, shard)), "reduce_scatter" + of);
    expect(same_bits(input.download(nullptr), mine), "reduce_scatter leaves its input alone" + of);

    const auto in_place = on_device(mine);
    group(comm, [&] { comm.reduce_scatter(in_place.span().subspan(shard.first, shard.size), in_place.span()); });
    expect(same_bits(part(in_place.download(nullptr), shard), part(want, shard)), "reduce_scatter in place" + of);

    group(comm, [&] { comm.all_gather(in_place.span(), in_place.span().subspan(shard.first, shard.size)); });
    const auto in_two_calls = in_place.download(nullptr);
    group(comm, [&] { comm.all_reduce(input.span()); });
    expect(same_bits(input.download(nullptr), want), "all_reduce" + of);
    expect(same_bits(input.download(nullptr), in_two_calls), "all_reduce is reduce_scatter and all_gather" + of);

    // Two roots in one group.
    const int root = int(elements % comm.size()), next = (root + 1) % comm.size();
    const auto at_root = on_device(mine), at_next = on_device(mine);
    group(comm, [&] {
        comm.reduce(at_root.span(), root);
        comm.reduce(at_next.span(), next);
    });
    expect(same_bits(at_root.download(nullptr), comm.rank() == root ? want : mine), "reduce" + of);
    expect(same_bits(at_next.download(nullptr), comm.rank() == next ? want : mine), "reduce to another root" + of);
}

template <class T> void check_moves(Communicator& comm, std::int64_t elements, unsigned salt) {
    const std::string of = " of " + std::to_string(elements) + " elements of " + std::to_string(sizeof(T)) + " bytes";
    const int ranks = comm.size(), rank = comm.rank();
    const ElementRange shard = shard_of(elements, rank, ranks);

    std::vector<T> whole;
    for (int r = 0; r < ranks; ++r) {
        const auto theirs = part(contribution<T>(elements, r, salt), shard_of(elements, r, ranks));
        whole.insert(whole.end(), theirs.begin(), theirs.end());
    }
    const auto mine = on_device(part(whole, shard));
    const auto gathered = poisoned<T>(elements);
    group(comm, [&] { comm.all_gather(gathered.span(), mine.span()); });
    expect(same_bits(gathered.download(nullptr), whole), "all_gather" + of);

    const std::int64_t each = (elements / ranks + 63) / 64 * 64;
    std::vector<T> exchanged;
    for (int r = 0; r < ranks; ++r) {
        const auto theirs = part(contribution<T>(each * ranks, r, salt), {each * rank, each});
        exchanged.insert(exchanged.end(), theirs.begin(), theirs.end());
    }
    const auto in = on_device(contribution<T>(each * ranks, rank, salt));
    const auto out = poisoned<T>(each * ranks);
    group(comm, [&] { comm.all_to_all(out.span(), in.span()); });
    expect(same_bits(out.download(nullptr), exchanged), "all_to_all" + of);

    const int root = int(elements % ranks);
    const auto data = rank == root ? on_device(contribution<T>(elements, root, salt)) : poisoned<T>(elements);
    group(comm, [&] { comm.broadcast(data.span(), root); });
    expect(same_bits(data.download(nullptr), contribution<T>(elements, root, salt)), "broadcast" + of);
}

}  // namespace

void test::check_device_collectives(Communicator& comm, std::int64_t largest) {
    unsigned salt = 0;
    const std::int64_t ranks = comm.size(), even = kShardMultiple * ranks;
    for (const std::int64_t elements :
         std::vector<std::int64_t>{0, 1, ranks - 1, ranks, ranks + 1, even, even + 1, 5000, largest}) {
        check_sums<float>(comm, elements, ++salt);
        check_sums<bf16>(comm, elements, ++salt);
        check_moves<float>(comm, elements, ++salt);
        check_moves<bf16>(comm, elements, ++salt);
        check_moves<std::byte>(comm, elements, ++salt);
    }
}

void test::check_groups(Communicator& comm) {
    const int ranks = comm.size(), rank = comm.rank();
    // More groups than a communicator has events, and many operations in each.
    for (int round = 0; round < 3; ++round) {
        std::vector<device::Array<float>> arrays;
        std::vector<std::int64_t> sizes;
        std::vector<CommEvent> events;
        for (int i = 0; i < 30; ++i) sizes.push_back(1 + i * 97);
        for (int i = 0; i < 30; ++i) arrays.push_back(on_device(contribution<float>(sizes[i], rank, i)));
        {
            const CommScope scope(comm);
            for (int i = 0; i < 30;) {
                comm.group_begin(nullptr);
                for (const int end = round == 0 ? 30 : i + round; i < end; ++i) comm.all_reduce(arrays[i].span());
                events.push_back(comm.group_end());
                // Rank 0 waits for all hosts while their collectives are in flight, and vice versa.
                expect(comm.host_reduce(rank, HostReduction::sum) == ranks * (ranks - 1) / 2,
                       "host_reduce while collectives are in flight");
            }
            comm.sync(events.front());
            comm.wait(nullptr, events.back());
        }
        for (int i = 0; i < 30; ++i)
            expect(same_bits(arrays[i].download(nullptr), sum<float>(sizes[i], ranks, i)),
                   "all_reduce in a group of many");
    }

    // Operations of several types, sizes and owners in one group.
    const int other = ranks - 1;
    const std::int64_t large = 20'000, small = 70;
    const ElementRange part_of_large = shard_of(large, rank, ranks);
    const auto a = on_device(contribution<float>(large, rank, 1)), d = on_device(contribution<float>(large, rank, 4));
    const auto b = on_device(contribution<bf16>(small, rank, 2));
    const auto c = on_device(contribution<float>(small, rank, 3));
    const auto scattered = poisoned<float>(part_of_large.size);
    group(comm, [&] {
        comm.reduce(a.span(), 0);
        comm.all_reduce(c.span());
        comm.reduce(b.span(), other);
        comm.reduce_scatter(scattered.span(), d.span());
    });
    if (rank == 0) expect(same_bits(a.download(nullptr), sum<float>(large, ranks, 1)), "reduce among others");
    if (rank == other)
        expect(same_bits(b.download(nullptr), sum<bf16>(small, ranks, 2)), "reduce of bf16 among others");
    expect(same_bits(c.download(nullptr), sum<float>(small, ranks, 3)), "all_reduce among others");
    expect(same_bits(scattered.download(nullptr), part(sum<float>(large, ranks, 4), part_of_large)),
           "reduce_scatter among others");

    // A group reads the output of an earlier group; no wait is needed in between.
    const std::int64_t elements = 10'000;
    const ElementRange shard = shard_of(elements, rank, ranks);
    const auto input = on_device(contribution<float>(elements, rank, 7));
    const auto mine = poisoned<float>(shard.size), whole = poisoned<float>(elements);
    comm.group_begin(nullptr);
    comm.reduce_scatter(mine.span(), input.span());
    comm.group_end();
    comm.group_begin(nullptr);
    comm.all_gather(whole.span(), mine.span());
    comm.wait(nullptr, comm.group_end());
    expect(same_bits(whole.download(nullptr), sum<float>(elements, ranks, 7)), "a group after a group");
    comm.wait(nullptr, CommEvent{});
}

void test::check_control_plane(Communicator& comm) {
    const std::int64_t ranks = comm.size(), rank = comm.rank(), large = std::int64_t(1) << 40;
    expect(comm.host_reduce(large + rank, HostReduction::sum) == large * ranks + ranks * (ranks - 1) / 2,
           "host_reduce, sum");
    expect(comm.host_reduce(rank - large, HostReduction::max) == ranks - 1 - large, "host_reduce, max");
    std::vector<std::int64_t> values{rank, -rank, 5};
    comm.host_reduce(values, HostReduction::max);
    expect(values == std::vector<std::int64_t>{ranks - 1, 0, 5}, "host_reduce, element by element");
    comm.host_reduce(std::span<std::int64_t>(), HostReduction::sum);

    const auto texts = comm.host_gather(std::string(rank * 1000, char('a' + rank)));
    expect(std::int64_t(texts.size()) == ranks, "host_gather, number of texts");
    for (int r = 0; r < ranks; ++r) expect(texts[r] == std::string(r * 1000, char('a' + r)), "host_gather, texts");
    comm.barrier();
    expect(comm.local_rank() == rank, "local_rank on one machine");
    expect(!comm.describe().empty(), "describe");

    // A thread uses the second control plane at the same time.
    const auto second = comm.duplicate_control();
    expect(second->rank() == rank && second->size() == ranks, "the ranks of a second control plane");
    std::int64_t wrong = 0;
    std::exception_ptr thrown;
    std::thread thread([&] {
        try {
            for (int i = 0; i < 100; ++i) wrong += second->host_gather(std::to_string(rank * i)).back() !=
                                                   std::to_string((ranks - 1) * i);
        } catch (...) {
            thrown = std::current_exception();
        }
    });
    for (int i = 0; i < 100; ++i) wrong += comm.host_reduce(rank * i, HostReduction::max) != (ranks - 1) * i;
    thread.join();
    if (thrown) std::rethrow_exception(thrown);
    expect(wrong == 0, "two control planes at the same time");
}

void test::check_parts(Communicator& comm) {
    const int ranks = comm.size(), rank = comm.rank();
    const auto odd = comm.split(rank % 2), half = comm.split(rank < ranks / 2 ? 7 : 3), all = comm.split(0);
    expect(odd->rank() == rank / 2 && odd->size() == (ranks + 1 - rank % 2) / 2, "the ranks of one color");
    expect(all->rank() == rank && all->size() == ranks, "all ranks as a part");
    expect(odd->node() == comm.node() && odd->local_rank() == comm.local_rank(), "a part's machine");
    const auto gathered = odd->host_gather(std::to_string(rank));
    for (int r = 0; r < odd->size(); ++r) expect(gathered[r] == std::to_string(2 * r + rank % 2), "a part's texts");
    expect(half->host_reduce(1, HostReduction::sum) == half->size(), "a part's sum");
    odd->barrier();
    for (Communicator* const part : {odd.get(), half.get(), all.get()}) {
        check_device_collectives(*part, 5003);
        check_groups(*part);
    }
    check_groups(*odd->split(odd->rank() % 2));

    // Each communicator in turn uses the output of another one while that one runs something else.
    constexpr std::int64_t kElements = 3000;
    const auto data = on_device(std::vector<float>(kElements, 1)), second = on_device(std::vector<float>(kElements, 1));
    const CommScope scope(comm), of_odd(*odd), of_half(*half);
    const std::int64_t before = comm.bytes_sent(), before_odd = odd->bytes_sent(), before_half = half->bytes_sent();
    odd->group_begin(nullptr);
    odd->all_reduce(data.span());
    const CommEvent summed = odd->group_end();
    odd->group_begin(nullptr);
    odd->all_reduce(second.span());
    const CommEvent second_summed = odd->group_end();
    odd->wait(nullptr, summed);
    half->group_begin(nullptr);
    half->all_reduce(data.span());
    half->wait(nullptr, half->group_end());
    odd->wait(nullptr, second_summed);
    expect(comm.bytes_sent() - before == odd->bytes_sent() - before_odd + half->bytes_sent() - before_half,
           "the bytes of parts count in the whole");
    float want = 0;
    for (int r = 0; r < ranks; ++r)
        if ((r < ranks / 2) == (rank < ranks / 2)) want += float((ranks + 1 - r % 2) / 2);
    expect(same_bits(data.download(nullptr), std::vector<float>(kElements, want)), "a sum of sums");
    expect(same_bits(second.download(nullptr), std::vector<float>(kElements, float(odd->size()))), "a concurrent sum");
}
