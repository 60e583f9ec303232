// state_files.cpp - writes ranges of the flat array by their owners, and reads ranges across the files of all ranks
#include "llmc/model/state_files.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"
#include "llmc/model/element_ranges.h"
#include "llmc/weights/safetensors.h"

namespace llmc {
namespace {

constexpr const char *kElements = "elements", *kWorkers = "workers", *kEachRank = "each_rank";
constexpr std::size_t kStateReadAtOnce = std::size_t(1) << 22;  // elements

// How many workers have values of their own in these files; 0: the file's tensors say so.
int workers_of(std::span<const SafetensorsFile> files, const std::string& kind) {
    const int ranks = int(files.size());
    if (files[0].metadata().contains(kEachRank)) return ranks;  // before workers could have several ranks
    if (!files[0].metadata().contains(kWorkers)) return 0;
    const std::string& text = metadata_of(files[0], kWorkers, kind.c_str());
    for (int workers = 1; workers <= ranks; ++workers)
        if (ranks % workers == 0 && text == std::to_string(workers)) return workers;
    fail(files[0].path() + ": the number of workers", in_quotes(text),
         "a divisor of the " + counted(ranks, "file"), "resume from another checkpoint");
}

// The files of one name, as far as they have one tensor.
class TensorFiles {
public:
    // `workers`: as workers_of(), of files that are averaged.
    TensorFiles(const StateTensor& tensor, bool averages, int workers, std::span<const SafetensorsFile> files,
                const std::string& kind, std::int64_t elements)
        : tensor_(tensor), files_(files), values_(files.size()) {
        for (std::size_t number = 0; number < files.size(); ++number) {
            const SafetensorsFile& file = files[number];
            const auto found = std::ranges::find(file.tensors(), tensor.name, &TensorInfo::name);
            if (found == file.tensors().end()) continue;
            require(found->dtype == "F32" && found->shape.size() == 1, file.path() + ": " + tensor.name,
                    found->dtype + ' ' + describe_shape(found->shape), "an fp32 vector",
                    "resume from another checkpoint");
            values_[number] = &*found;
            std::int64_t offset = 0;
            const auto ranges = file.metadata().contains(tensor.ranges_key)
                                    ? ranges_in(file, tensor.ranges_key, kind.c_str(), elements)
                                    : std::vector<ElementRange>{{.first = 0, .size = elements}};
            for (const ElementRange& range : ranges) {
                ranges_.push_back({.flat = range, .file = number, .offset = offset});
                offset += range.size;
            }
            require(found->elements() == offset, file.path() + ": the length of " + tensor.name, found->elements(),
                    std::to_string(offset) + ", the total of its ranges", "resume from another checkpoint");
        }
        require(!ranges_.empty(), files[0].path() + (files.size() > 1 ? " and the other ranks' files" : ""),
                "without the tensor " + tensor.name, kind);
        std::vector<ElementRange> all;
        for (const FileRange& range : ranges_) all.push_back(range.flat);
        if (averages && workers > 0) {
            ranks_of_element_ = workers;  // read() counts those of each element
        } else if (averages) {
            const std::optional<std::int64_t> times = times_covered(all, elements);
            require(times && *times > 0, in_files(), "incomplete",
                    "values of all " + std::to_string(elements) + " parameters, from equally many ranks",
                    "resume from another checkpoint");
            ranks_of_element_ = *times;
        } else {
            require(are_disjoint(all), in_files(), "with some elements twice", "each element once",
                    "resume from another checkpoint");
        }
    }

    // Each value is the mean over the ranks that have one, which are added in rank order.
    void read(std::int64_t first, std::span<float> to) const {
        std::vector<float> part(to.size());
        std::vector<double> sums(to.size(), -0.0);  // the sum with x is x, also if that is -0
        std::int64_t found = 0;
        for (const FileRange& range : ranges_) {
            const std::int64_t from = std::max(first, range.flat.first),
                               size = std::min(first + std::ssize(to), range.flat.end()) - from;
            if (size <= 0) continue;
            const std::span<float> read = std::span(part).first(std::size_t(size));
            const SafetensorsFile& file = files_[range.file];
            file.read(*values_[range.file], range.offset + from - range.flat.first, read);
            for (std::size_t i = 0; i < read.size(); ++i) {
                if (!std::isfinite(read[i]) || (tensor_.non_negative && std::signbit(read[i])))
                    fail(file.path() + ": a value of " + tensor_.name, read[i],
                         tensor_.non_negative ? "finite, 0 or more" : "finite", "resume from another checkpoint");
                sums[std::size_t(from - first) + i] += double(read[i]);
            }
            found += size;
        }
        require(found == ranks_of_element_ * std::ssize(to), in_files(),
                "for " + std::to_string(found) + " of the elements from " + std::to_string(first),
                "each of " + std::to_string(to.size()) + " elements once", "resume from another checkpoint");
        for (std::size_t i = 0; i < to.size(); ++i) to[i] = float(sums[i] / double(ranks_of_element_));
    }

private:
    struct FileRange {
        ElementRange flat;
        std::size_t file;
        std::int64_t offset;  // in the file's vector
    };

    std::string in_files() const {
        return tensor_.name + " in " + files_[0].path() + (files_.size() > 1 ? " and the other ranks' files" : "");
    }

    const StateTensor& tensor_;
    std::span<const SafetensorsFile> files_;
    std::vector<const TensorInfo*> values_;  // by file; null: the file does not have the tensor
    std::vector<FileRange> ranges_;          // in rank order
    std::int64_t ranks_of_element_ = 1;
};

std::string names_of(const StateFile& file) {
    std::string names;
    for (const StateTensor& tensor : file.tensors) names += (names.empty() ? "" : " and ") + tensor.name;
    return names;
}

}  // namespace

std::string state_file_name(const std::string& name, int number, int files) {
    return name + format("-%05d-of-%05d.safetensors", number, files);
}

FileFingerprint write_state(const std::filesystem::path& path, const StateFile& file, std::int64_t elements,
                            std::span<const float> values) {
    require(std::ssize(values) == file.elements(), "the number of values to save in " + path.filename().string(),
            values.size(), std::to_string(file.elements()));
    std::vector<TensorToWrite> tensors;
    Metadata metadata{{kElements, std::to_string(elements)}};
    if (file.workers > 0) metadata[kWorkers] = std::to_string(file.workers);
    for (const StateTensor& tensor : file.tensors) {
        tensors.push_back({tensor.name, "F32", {tensor.elements()}});
        std::vector<ElementRange> ranges = tensor.ranges();
        std::erase_if(ranges, [](const ElementRange& range) { return range.size == 0; });
        if (!tensor.whole) metadata[tensor.ranges_key] = text_of_ranges(ranges);
    }
    for (const StateFile::Mark& mark : file.marks)
        if (!mark.value.empty()) metadata[mark.key] = mark.value;
    SafetensorsWriter writer(path, tensors, metadata);
    writer.append(values);
    return writer.finish();
}

std::string read_state(const StateFile& file, const StateSource& source,
                       const std::function<void(std::span<float>, std::span<const float>)>& store) {
    const std::string about = "optimizer state " + file.name + ": ";
    if (source.files == 0) {
        require(file.optional, "the checkpoint " + source.folder.string(), "without files of " + file.name,
                names_of(file), "resume from another checkpoint");
        return about + "starts at 0, because the checkpoint has none";
    }
    const std::string kind = "a file of " + names_of(file);
    std::vector<SafetensorsFile> files;
    for (int number = 0; number < source.files; ++number) {
        const auto& opened = files.emplace_back(source.folder / state_file_name(file.name, number, source.files));
        const std::string& of = metadata_of(opened, kElements, kind.c_str());
        require(of == std::to_string(source.elements), opened.path() + ": the number of parameters", in_quotes(of),
                std::to_string(source.elements), "resume with the model of the checkpoint");
    }
    bool same_ranks = source.files == source.ranks;
    for (const auto& [key, value, otherwise] : file.marks)
        for (const SafetensorsFile& of : files) {
            const bool has_none = otherwise == StateFile::Otherwise::resharded && !of.metadata().contains(key);
            const std::string then = has_none ? "" : metadata_of(of, key, kind.c_str());
            if (then == value) continue;
            require(otherwise != StateFile::Otherwise::refused, of.path() + ": the " + key, in_quotes(then), value,
                    "resume with the version of this program that wrote it");
            if (otherwise == StateFile::Otherwise::starts_at_0)
                return about + "starts at 0, because the checkpoint's is for " + then + ", not " + value;
            same_ranks = false;
        }
    std::string averaged;
    const int workers = workers_of(files, kind);
    for (const StateTensor& tensor : file.tensors) {
        const bool own = tensor.of_each_rank || workers > 0,
                   averages = own && (!same_ranks || workers != file.workers);
        // Of this rank, or of its worker, whose ranks may have had other shards.
        const std::size_t ranks = workers > 0 && !tensor.of_each_rank && !tensor.whole
                                      ? files.size() / std::size_t(workers) : 1;
        const auto from = own && !averages
                              ? std::span(files).subspan(std::size_t(source.rank) / ranks * ranks, ranks)
                              : std::span(files);
        const TensorFiles values(tensor, averages, workers, from, kind, source.elements);
        std::vector<float> part;
        for (const StateTensor::Shard& shard : tensor.shards)
            for (std::size_t first = 0; first < shard.values.size(); first += kStateReadAtOnce) {
                part.resize(std::min(kStateReadAtOnce, shard.values.size() - first));
                values.read(shard.first + std::int64_t(first), part);
                store(shard.values.subspan(first, part.size()), part);
            }
        if (averages && source.files > 1) averaged += (averaged.empty() ? "" : " and ") + tensor.name;
    }
    if (averaged.empty()) return "";
    return about +
           (workers > 0 && file.workers == 0 ? "ranks train together again"
            : source.files != source.ranks
                ? counted(source.ranks, "rank") + " instead of " + std::to_string(source.files)
            : workers != file.workers
                ? counted(file.workers, "worker") + " instead of " + std::to_string(workers)
                : counted(source.ranks, "rank") + " grouped otherwise") +
           ": each starts with the mean of " + averaged + " over the checkpoint's ranks";
}

}  // namespace llmc
