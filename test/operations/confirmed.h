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
#include <map>
#include <span>
#include <string>
#include <vector>

#include "test/operations/operation.h"

namespace operations {

struct OutputSum {
    std::string name;  // of the tensor
    std::size_t size;
    std::string bits;     // a hash
    double sum, allowed;  // `allowed`: the sum's largest error; 0: of integers, whose bits must be equal
};
// `bytes`: device memory of `tensor` after a run, with its guards.
OutputSum sum_of(const Storage& tensor, const std::vector<std::byte>& bytes, const std::vector<Rounded>& want);
std::string line_of(const std::string& name, const std::string& inputs, std::span<const OutputSum> outputs);

// The cases of one device, from a file.
class Recording {
public:
    explicit Recording(const std::string& file);  // throws std::runtime_error if it has no cases
    // Returns how the outputs of a case differ; empty: within the tolerance, or the case is not in the recording.
    std::string differences(const std::string& name, const std::string& inputs, std::span<const OutputSum> outputs);
    std::string summary() const;

private:
    std::string file_;
    std::map<std::string, std::string> cases_;  // rest of the line by name
    int identical_ = 0, within_ = 0, different_ = 0;
};

// Appends a case to the file TRAIN_GPT2_RECORD, which the first call empties, and compares it with the recordings of
// dev/results/operations and the file TRAIN_GPT2_CONFIRMED; returns how it differs.
std::string record_and_compare(const Operation& op, const std::string& name, std::span<const OutputSum> outputs);

}  // namespace operations
