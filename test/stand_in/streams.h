// streams.h - contents of the device's streams: pending operations, and points that others wait for
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "test/stand_in/clocks.h"
#include "test/stand_in/protocol.h"

namespace stand_in {

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

}  // namespace stand_in
