// confirmed.h - what a device computed for the registered operations, a few numbers for each output, for others to
// compare with: kernels that a GPU has run, with the host executor (test/README.md)
//
// A line of a recording is a test case, with tabs between: its name, a hash of its inputs, and for each output its
// size, a hash of its bits, the sum of its elements, each divided by its magnitude (at least 1/32 of their root mean
// square) and multiplied by a random number of magnitude 1 to 2, and the largest rounding error of this sum:
// kDeviations standard deviations (rounded.h), which depend on the device. Of 1000 elements one is found that is wrong
// by its whole value in bf16, or by 2e-5 of it in fp32; every executor also compares each element with its formula.
// Outputs of another size, one element per tile of another geometry, are not compared.
#pragma once
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "llmc/base/fingerprint.h"
#include "test/operations/operation.h"

namespace operations {

inline std::string hash(std::span<const std::byte> bytes) { return llmc::fingerprint(bytes).substr(0, 8); }

struct OutputSum {
    std::string name;  // of the tensor
    std::size_t size;
    std::string bits;     // a hash
    double sum, allowed;  // `allowed`: the sum's largest error; 0: of integers, whose bits must be equal
};
// `bytes`: device memory of `tensor` after a run, with its guards.
inline OutputSum sum_of(const Storage& tensor, const std::vector<std::byte>& bytes, const std::vector<Rounded>& want) {
    double squares = 0, sum = 0, variance = 0;
    for (std::size_t i = 0; i < tensor.size; ++i) squares += square(double(want[i].value));
    const double floor = std::sqrt(squares / double(tensor.size)) / 32 + 1e-30;
    std::mt19937 engine(54321);
    for (std::size_t i = 0; i < tensor.size; ++i) {
        const double inherited = tensor.exact ? 0 : want[i].variance, reference = want[i].value;
        const auto bits = engine();
        const double weight = (bits & 1 ? 1 : -1) * (1 + std::ldexp(bits, -32)) / (std::fabs(reference) + floor);
        sum += weight * tensor.value(bytes, i);
        variance += square(weight) * (inherited + square(0.5 * tensor.element->ulp(reference)));
    }
    const auto elements = std::span(bytes).subspan(Storage::kGuard, tensor.size * tensor.element->size);
    return {tensor.name, tensor.size, hash(elements), sum, kDeviations * std::sqrt(variance)};
}

inline std::string line_of(const std::string& name, const std::string& inputs, std::span<const OutputSum> outputs) {
    std::ostringstream line;
    line << name << '\t' << inputs;
    for (const auto& output : outputs)
        line << '\t' << output.size << ' ' << output.bits << ' ' << std::setprecision(9) << output.sum << ' '
             << std::setprecision(3) << output.allowed;
    return line.str();
}

// The cases of one device, from a file.
class Recording {
public:
    explicit Recording(const std::string& file) : file_(file) {
        std::ifstream in(file);
        for (std::string name, rest; std::getline(in, name, '\t') && std::getline(in, rest);) cases_[name] = rest;
        if (cases_.empty()) throw std::runtime_error(file + " has no cases; expected a file of TRAIN_GPT2_RECORD");
    }
    // Returns how the outputs of a case differ; empty: within the tolerance, or the case is not in the recording.
    std::string differences(const std::string& name, const std::string& inputs, std::span<const OutputSum> outputs) {
        const auto found = cases_.find(name);
        if (found == cases_.end()) return "";
        std::istringstream recorded(found->second);
        std::ostringstream wrong;
        std::string same_inputs, bits;
        recorded >> same_inputs;
        bool identical = true;
        for (const OutputSum& output : outputs) {
            std::size_t size = 0;
            double sum = 0, allowed = 0;
            if (!(recorded >> size >> bits >> sum >> allowed)) wrong << " no " << output.name << " is recorded;";
            if (size != output.size || bits == output.bits) continue;
            identical = false;
            // 1 % and 1e-9: the references of two machines, and the recorded digits, are rounded.
            allowed = output.allowed > 0 ? 1.01 * std::hypot(allowed, output.allowed) + 1e-9 * std::fabs(sum) : 0;
            if (std::fabs(sum - output.sum) < allowed) continue;
            wrong << ' ' << output.name << " has the sum " << output.sum << ", recorded " << sum << ", " << allowed
                  << " is allowed;";
        }
        if (!wrong.str().empty()) {
            ++different_;
            return file_ + ':' + wrong.str() + (inputs == same_inputs ? "" : " the inputs differ, too: record again");
        }
        ++(identical ? identical_ : within_);
        return "";
    }
    std::string summary() const {
        return file_ + ": of " + std::to_string(cases_.size()) + " cases " + std::to_string(identical_) +
               " are bit-identical, " + std::to_string(within_) + " within the tolerance, " +
               std::to_string(different_) + " differ";
    }

private:
    std::string file_;
    std::map<std::string, std::string> cases_;  // rest of the line by name
    int identical_ = 0, within_ = 0, different_ = 0;
};

// Of dev/results/operations and TRAIN_GPT2_CONFIRMED; the end of the program prints what was compared.
struct Recordings {
    std::vector<Recording> list;
    Recordings() {
        const std::filesystem::path folder = "dev/results/operations";
        if (exists(folder))
            for (const auto& file : std::filesystem::directory_iterator(folder)) list.emplace_back(file.path());
        if (const char* const file = std::getenv("TRAIN_GPT2_CONFIRMED")) list.emplace_back(file);
    }
    ~Recordings() {
        for (const Recording& recording : list) std::cout << recording.summary() << std::endl;
    }
};

// Appends a case to the file TRAIN_GPT2_RECORD, which the first call empties, and compares it with the recordings of
// dev/results/operations and the file TRAIN_GPT2_CONFIRMED; returns how it differs.
inline std::string record_and_compare(const Operation& op, const std::string& name,
                                      std::span<const OutputSum> outputs) {
    static const char* const path = std::getenv("TRAIN_GPT2_RECORD");
    static Recordings recordings;
    if (!path && recordings.list.empty()) return "";
    std::vector<std::byte> read;
    for (const Storage& tensor : op.tensors)
        if (const auto bytes = tensor.bytes_before(); tensor.is_read())
            read.insert(read.end(), bytes.begin(), bytes.end());
    const std::string inputs = hash(read);
    static std::ofstream file = path ? std::ofstream(path) : std::ofstream();
    if (path && !(file << line_of(name, inputs, outputs) << std::endl))
        throw std::runtime_error(std::string("cannot write TRAIN_GPT2_RECORD=") + path);
    std::string differences;
    for (Recording& recording : recordings.list) differences += recording.differences(name, inputs, outputs);
    return differences;
}

}  // namespace operations
