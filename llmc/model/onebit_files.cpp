// onebit_files.cpp - writes errors on each rank, and reads them on the same or another number of ranks
#include "llmc/model/onebit_files.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

#include "kernels/base/error.h"
#include "llmc/model/element_ranges.h"
#include "llmc/weights/safetensors.h"

namespace llmc {
namespace {

constexpr const char *kShadow = "shadow_moment", *kWorker = "worker_error", *kServer = "server_error";
constexpr const char *kVersion = "1", *kErrorsFile = "a file of 1-bit Adam's state";
// Metadata keys: ranges of the server; if nodes are the workers, also ranges of the worker, and the node of every rank.
constexpr const char *kServedRanges = "stretches", *kWorkerRanges = "worker_stretches", *kNodes = "nodes";
constexpr std::size_t kAveragedAtOnce = std::size_t(1) << 20;  // elements

// A file with the errors of one rank, or with the shadow moment.
class OnebitFile {
public:
    OnebitFile(const std::filesystem::path& path, std::int64_t elements) : file_(path), elements_(elements) {
        require(metadata("elements") == std::to_string(elements), file_.path() + ": the number of parameters",
                in_quotes(metadata("elements")), std::to_string(elements), "resume with the model of the checkpoint");
    }
    const std::string& path() const { return file_.path(); }
    const std::string& metadata(const std::string& key) const { return metadata_of(file_, key, kErrorsFile); }
    // Reads elements [first, first + size) of a vector of `length`. Throws Error for a value that is not finite, and
    // for a negative second moment.
    void read(const char* name, std::int64_t length, std::int64_t first, std::span<float> to) const {
        const auto found = std::ranges::find(file_.tensors(), name, &TensorInfo::name);
        require(found != file_.tensors().end() && found->dtype == "F32" && found->shape.size() == 1 &&
                    found->elements() == length,
                file_.path(), std::string("without a fp32 vector ") + name + " of " + std::to_string(length),
                kErrorsFile);
        file_.read(*found, first, to);
        const bool square = name == kShadow;
        const auto bad =
            std::ranges::find_if(to, [square](float x) { return !std::isfinite(x) || (square && std::signbit(x)); });
        if (bad != to.end())
            fail(file_.path() + ": a value of " + name, *bad, square ? "finite, 0 or more" : "finite",
                 "resume from another checkpoint");
    }
    bool has(const char* key) const { return file_.metadata().contains(key); }
    std::vector<ShardRange> served() const { return ranges_in(file_, kServedRanges, kErrorsFile, elements_); }
    std::vector<ShardRange> worked() const {
        if (!has(kWorkerRanges)) return {{.first = 0, .size = elements_}};
        return ranges_in(file_, kWorkerRanges, kErrorsFile, elements_);
    }

private:
    SafetensorsFile file_;
    std::int64_t elements_;
};

// Elements [first, first + size) of the concatenated ranges.
std::vector<ShardRange> part_of(const std::vector<ShardRange>& ranges, std::int64_t first, std::int64_t size) {
    std::vector<ShardRange> part;
    std::int64_t offset = 0;
    for (const ShardRange& range : ranges) {
        const std::int64_t begin = std::max(first, offset), end = std::min(first + size, offset + range.size);
        if (begin < end) part.push_back({.first = range.first + begin - offset, .size = end - begin});
        offset += range.size;
    }
    return part;
}

// Calls use(offset in the first list's concatenated elements, offset in the second's, size) for every intersection of
// two ranges.
template <class Use>
void for_common(const std::vector<ShardRange>& one, const std::vector<ShardRange>& other, Use&& use) {
    std::int64_t offset = 0;
    for (const ShardRange& from : one) {
        std::int64_t target = 0;
        for (const ShardRange& range : other) {
            const std::int64_t first = std::max(from.first, range.first),
                               end = std::min(from.first + from.size, range.first + range.size);
            if (first < end) use(offset + first - from.first, target + first - range.first, end - first);
            target += range.size;
        }
        offset += from.size;
    }
}

// Reads the server errors of the ranges `wanted` from the files of all ranks of the checkpoint.
void collect_served(std::span<const OnebitFile> files, const std::vector<ShardRange>& wanted, std::span<float> to) {
    std::int64_t found = 0;
    std::vector<ShardRange> all;
    for (const OnebitFile& file : files) {
        const std::vector<ShardRange> theirs = file.served();
        all.insert(all.end(), theirs.begin(), theirs.end());
        for_common(theirs, wanted, [&](std::int64_t offset, std::int64_t target, std::int64_t size) {
            file.read(kServer, total(theirs), offset, to.subspan(std::size_t(target), std::size_t(size)));
            found += size;
        });
    }
    require(found == total(wanted) && are_disjoint(all),
            "the server errors in " + files[0].path() + " and the other ranks' files",
            "for " + std::to_string(found) + " of this rank's elements",
            "each of its " + std::to_string(total(wanted)) + " elements once", "resume from another checkpoint");
}

// For every element the mean over the workers that have it.
void average_workers(const std::vector<OnebitFile>& files, const std::vector<ShardRange>& wanted, std::int64_t elements,
                     std::span<float> to) {
    std::vector<ShardRange> all;
    for (const OnebitFile& file : files) {
        const std::vector<ShardRange> theirs = file.worked();
        all.insert(all.end(), theirs.begin(), theirs.end());
    }
    const std::optional<std::int64_t> times = times_covered(all, elements);
    require(times && *times > 0, "the worker errors in " + files[0].path() + " and the other ranks' files",
            "incomplete", "errors of all " + std::to_string(elements) + " parameters, from equally many workers",
            "resume from another checkpoint");
    const double workers = double(*times);
    std::vector<float> part(std::min(to.size(), kAveragedAtOnce));
    std::vector<double> sums(part.size());
    for (std::size_t first = 0; first < to.size(); first += part.size()) {
        const std::size_t size = std::min(part.size(), to.size() - first);
        std::ranges::fill(sums, 0.0);
        const std::vector<ShardRange> now = part_of(wanted, std::int64_t(first), std::int64_t(size));
        for (const OnebitFile& file : files) {
            const std::vector<ShardRange> theirs = file.worked();
            for_common(theirs, now, [&](std::int64_t offset, std::int64_t target, std::int64_t common) {
                const auto read = std::span(part).first(std::size_t(common));
                file.read(kWorker, total(theirs), offset, read);
                for (std::size_t i = 0; i < read.size(); ++i) sums[std::size_t(target) + i] += double(read[i]);
            });
        }
        for (std::size_t i = 0; i < size; ++i) to[first + i] = float(sums[i] / workers);
    }
}

}  // namespace

std::string onebit_file_name(int number, int files) {
    char name[64];
    std::snprintf(name, sizeof name, "onebit-%05d-of-%05d.safetensors", number, files);
    return name;
}

int onebit_file_count(const OnebitState& state, int ranks) {
    return state.kind == OnebitState::Kind::none ? 0 : state.kind == OnebitState::Kind::shadow ? 1 : ranks;
}

bool writes_onebit(const OnebitState& state, int rank) { return rank < onebit_file_count(state, rank + 1); }

FileFingerprint write_onebit(const std::filesystem::path& file, const OnebitState& state, std::int64_t elements,
                             std::span<const float> values) {
    require(std::ssize(values) == state.elements, "the elements of 1-bit Adam's state", values.size(),
            std::to_string(state.elements));
    if (state.kind == OnebitState::Kind::shadow) {
        SafetensorsWriter writer(file, {{kShadow, "F32", {elements}}}, {{"elements", std::to_string(elements)}});
        writer.append(values);
        return writer.finish();
    }
    const std::int64_t worked = total(state.worked), served = total(state.served);
    std::map<std::string, std::string> metadata{{"version", kVersion}, {"elements", std::to_string(elements)},
                                                {"layout", state.layout},
                                                {kServedRanges, text_of_ranges(state.served)}};
    if (!state.nodes.empty()) {
        metadata[kWorkerRanges] = text_of_ranges(state.worked);
        metadata[kNodes] = state.nodes;
    }
    SafetensorsWriter writer(file, {{kWorker, "F32", {worked}}, {kServer, "F32", {served}}}, metadata);
    writer.append(values.first(std::size_t(worked)));
    writer.append(values.subspan(std::size_t(worked)));
    return writer.finish();
}

OnebitErrors read_onebit(const OnebitState& state, std::int64_t elements, const std::filesystem::path& folder,
                         int files, int rank, int ranks) {
    const bool errors = state.kind == OnebitState::Kind::errors;
    if (state.kind == OnebitState::Kind::none)
        return {.note = files > 1 ? "1-bit Adam: this run does not compress, so the errors of " +
                                        std::to_string(files) + " ranks are not loaded" : ""};
    if (files == 0)
        return {.note = errors ? "1-bit Adam: the checkpoint has no errors; they start at 0"
                               : "1-bit Adam: the checkpoint has no slow second moment; it starts at 0"};
    std::vector<OnebitFile> all;
    for (int number = 0; number < files; ++number) all.emplace_back(folder / onebit_file_name(number, files), elements);
    OnebitErrors read{.values = std::vector<float>(std::size_t(state.elements))};
    if (!errors) {
        all[0].read(kShadow, elements, 0, read.values);
        return read;
    }
    for (const OnebitFile& file : all)
        require(file.metadata("version") == kVersion, file.path() + ": the version",
                in_quotes(file.metadata("version")), kVersion, "resume with the version of this program that wrote it");
    if (all[0].metadata("layout") != state.layout)
        return {.note = "1-bit Adam: all errors start at 0, because those of the checkpoint are for " +
                        all[0].metadata("layout") + ", not " + state.layout};
    const std::int64_t worked = total(state.worked);
    const auto workers = std::span(read.values).first(std::size_t(worked)),
               servers = std::span(read.values).subspan(std::size_t(worked));
    if (files == ranks && (all[0].has(kNodes) ? all[0].metadata(kNodes) : "") == state.nodes) {
        const OnebitFile& mine = all[std::size_t(rank)];
        mine.read(kWorker, worked, 0, workers);
        collect_served(std::span(&mine, 1), state.served, servers);
    } else {
        average_workers(all, state.worked, elements, workers);
        collect_served(all, state.served, servers);
        read.note = "1-bit Adam: " + std::to_string(ranks) + " ranks" +
                    (files == ranks ? std::string(" on other nodes") : " instead of " + std::to_string(files)) +
                    ": each starts with the mean of the workers' errors";
    }
    return read;
}

}  // namespace llmc
