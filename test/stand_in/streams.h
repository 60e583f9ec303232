// streams.h - what streams of the device hold: operations that wait for their turn, and points that others wait for
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "test/stand_in/clocks.h"
#include "test/stand_in/protocol.h"

namespace stand_in {

// What cudaEventRecord leaves: done once its stream has come to it.
struct Point {
    std::uint32_t stream = 0;
    bool done = false;
    double seconds = 0;  // of the device's clock
    Clock before;        // what comes before what waits for it
};

struct Pending {
    Command command;
    std::uint32_t operation = 0;
    std::uint64_t age = 0;  // of all operations, in the order of their commands
    std::vector<Range> ranges;
    std::vector<std::byte> payload;
    std::shared_ptr<Point> point;
    bool begun = false;
};

struct Stream {
    std::deque<Pending> pending;
    std::uint32_t count = 0;  // of operations so far
    Clock before;             // what comes before its next operation
    double seconds = 0;
};

// What the host waits for.
struct Wait {
    std::uint64_t answer;
    std::vector<std::shared_ptr<Point>> points;
    bool orders = true;  // what the host says after it comes behind the points
};

}  // namespace stand_in
