// tuned_algorithms.h - table of autotuned algorithms: one entry per library and problem, so that a repeated command
// uses the same algorithms
//
// The caller looks an entry up with find(). If there is none and `timing` is true, it times the candidates (timing.h)
// and stores the fastest with keep(); otherwise it uses the library's first algorithm and stores nothing.
// llmc/model/tuning.h reads and writes the file, and exchanges entries between ranks.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kernels {

struct TunedAlgorithm {
    std::string taken;   // name of the selected algorithm, in the caller's format
    std::string why;     // for the output: the times
    double seconds = 0;  // time of `taken`; 0: unknown
    bool operator==(const TunedAlgorithm&) const = default;
};

// The entries of one device: by library with its version ("cuBLASLt 13.1.2"), then by problem.
using TunedTable = std::map<std::string, std::map<std::string, TunedAlgorithm>>;

class TunedAlgorithms {
public:
    bool timing = false;          // whether to time problems without an entry
    std::size_t cache_bytes = 0;  // of the device's last-level cache, flushed before each timed run
    // Of load before the first timing: an idle GPU's clock is higher than a long run's (H200: 1980, 1425 to 1600 MHz).
    double load_seconds = 0;
    TunedTable known;            // from a file or from another rank
    std::function<void()> on_timing;  // if set, called before a problem is timed

    // nullptr: no entry.
    const TunedAlgorithm* find(const std::string& library, const std::string& problem) const;
    void keep(const std::string& library, const std::string& problem, const TunedAlgorithm& choice);
    // Removes an entry that cannot be used.
    void reject(const std::string& library, const std::string& problem);

    // For the output: what could not be timed, and why.
    void note(std::string text) { notes_.push_back(std::move(text)); }
    const std::vector<std::string>& notes() const { return notes_; }

    const TunedTable& used() const { return used_; }    // all entries found or stored
    const TunedTable& timed() const { return timed_; }  // entries stored since the start

private:
    mutable TunedTable used_;
    TunedTable timed_;
    std::vector<std::string> notes_;
};

std::size_t count(const TunedTable& table);

}  // namespace kernels
