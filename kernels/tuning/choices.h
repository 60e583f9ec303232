// choices.h - which of several ways to compute the same is taken: looked up by what is asked, so that the same command
// takes the same again, and timed where nothing is known
//
// Who chooses asks find() first. Where that knows nothing, and `timing` allows it, candidates are timed (timing.h) and
// keep() takes the result; else the library's first is taken, and not kept. Where choices come from and go to, a file
// and other ranks, is the business of llmc/run/start/tuning.h.
#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kernels {

struct Choice {
    std::string taken;   // in the words of who chose
    std::string why;     // for people: what was timed
    double seconds = 0;  // that `taken` took; 0: not known
    bool operator==(const Choice&) const = default;
};

// Of one device: by library with its version ("cuBLASLt 13.1.2"), then by what is computed.
using ChoiceTable = std::map<std::string, std::map<std::string, Choice>>;

class Choices {
public:
    bool timing = false;          // whether what is not known is timed
    std::size_t cache_bytes = 0;  // of the device's last cache, which is emptied before each timed run
    ChoiceTable known;            // from a file or from another rank

    // nullptr: nothing is known.
    const Choice* find(const std::string& library, const std::string& problem) const;
    void keep(const std::string& library, const std::string& problem, const Choice& choice);
    // What find() gave cannot be used any more: it counts as unknown from now on.
    void reject(const std::string& library, const std::string& problem);

    // For people: a choice that could not be made, and why.
    void note(std::string text) { notes_.push_back(std::move(text)); }
    const std::vector<std::string>& notes() const { return notes_; }

    const ChoiceTable& used() const { return used_; }    // all that were found or kept
    const ChoiceTable& timed() const { return timed_; }  // kept since the start

private:
    mutable ChoiceTable used_;
    ChoiceTable timed_;
    std::vector<std::string> notes_;
};

std::size_t count(const ChoiceTable& table);

}  // namespace kernels
