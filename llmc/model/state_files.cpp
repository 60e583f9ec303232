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

constexpr const char *kElements = "elements", *kVersion = "version", *kLayout = "layout";
constexpr std::size_t kStateReadAtOnce = std::size_t(1) << 22;  // elements

// The files of one name, as far as they have one tensor.
class TensorFiles {
public:
    TensorFiles(const StateTensor& tensor, StateTensor::Reshard reshard, std::span<const SafetensorsFile> files,
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
        std::ranges::stable_sort(ranges_, {}, [](const FileRange& range) { return range.flat.first; });
        require(!ranges_.empty(), files[0].path() + (files.size() > 1 ? " and the other ranks' files" : ""),
                "without the tensor " + tensor.name, kind);
        std::vector<ElementRange> all;
        for (const FileRange& range : ranges_) all.push_back(range.flat);
        if (reshard == StateTensor::Reshard::mean) {
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

    // Each element has one value.
    void read(std::int64_t first, std::span<float> to) const {
        std::int64_t found = 0;
        for_files(first, std::ssize(to), [&](const SafetensorsFile& file, const TensorInfo& info, std::int64_t from,
                                             std::int64_t target, std::int64_t size) {
            read_checked(file, info, from, to.subspan(std::size_t(target), std::size_t(size)));
            found += size;
        });
        require(found == std::ssize(to), in_files(),
                "for " + std::to_string(found) + " of the elements from " + std::to_string(first),
                "each of " + std::to_string(to.size()) + " elements once", "resume from another checkpoint");
    }

    // Each element has a value of every rank that holds it.
    void read_mean(std::int64_t first, std::span<float> to) const {
        std::vector<float> part(to.size());
        std::vector<double> sums(to.size());
        for (std::size_t number = 0; number < files_.size(); ++number)  // in rank order
            for_files(first, std::ssize(to), [&](const SafetensorsFile& file, const TensorInfo& info, std::int64_t from,
                                                 std::int64_t target, std::int64_t size) {
                if (&file != &files_[number]) return;
                const auto read = std::span(part).first(std::size_t(size));
                read_checked(file, info, from, read);
                for (std::size_t i = 0; i < read.size(); ++i) sums[std::size_t(target) + i] += double(read[i]);
            });
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
    // Calls use(file, tensor, first element in the file, first one relative to `first`, size) for all intersections.
    template <class Use> void for_files(std::int64_t first, std::int64_t size, Use&& use) const {
        for (const FileRange& range : ranges_) {
            const std::int64_t from = std::max(first, range.flat.first),
                               to = std::min(first + size, range.flat.end());
            if (from < to)
                use(files_[range.file], *values_[range.file], range.offset + from - range.flat.first, from - first,
                    to - from);
        }
    }
    void read_checked(const SafetensorsFile& file, const TensorInfo& info, std::int64_t first,
                      std::span<float> to) const {
        file.read(info, first, to);
        const bool positive = tensor_.non_negative;
        const auto bad = std::ranges::find_if(
            to, [positive](float x) { return !std::isfinite(x) || (positive && std::signbit(x)); });
        if (bad != to.end())
            fail(file.path() + ": a value of " + tensor_.name, *bad, positive ? "finite, 0 or more" : "finite",
                 "resume from another checkpoint");
    }

    const StateTensor& tensor_;
    std::span<const SafetensorsFile> files_;
    std::vector<const TensorInfo*> values_;  // by file; null: the file does not have the tensor
    std::vector<FileRange> ranges_;          // in the order of the flat array
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
    for (const StateTensor& tensor : file.tensors) {
        tensors.push_back({tensor.name, "F32", {tensor.elements()}});
        std::vector<ElementRange> ranges = tensor.ranges();
        std::erase_if(ranges, [](const ElementRange& range) { return range.size == 0; });
        if (!tensor.whole) metadata[tensor.ranges_key] = text_of_ranges(ranges);
    }
    for (const auto& [key, value] : {std::pair(std::string(kVersion), file.version), {kLayout, file.layout},
                                     {file.placement_key, file.placement}})
        if (!value.empty()) metadata[key] = value;
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
        if (file.version.empty()) continue;
        const std::string& version = metadata_of(opened, kVersion, kind.c_str());
        require(version == file.version, opened.path() + ": the version", in_quotes(version), file.version,
                "resume with the version of this program that wrote it");
    }
    if (!file.layout.empty())
        if (const std::string& layout = metadata_of(files[0], kLayout, kind.c_str()); layout != file.layout)
            return about + "starts at 0, because the checkpoint's is for " + layout + ", not " + file.layout;
    const auto placement = files[0].metadata().find(file.placement_key);
    const bool same_ranks = source.files == source.ranks &&
                            (placement == files[0].metadata().end() ? "" : placement->second) == file.placement;
    std::string note;
    for (const StateTensor& tensor : file.tensors) {
        const bool every_rank = tensor.reshard == StateTensor::Reshard::mean, averages = every_rank && !same_ranks;
        const auto from = every_rank && same_ranks ? std::span(files).subspan(std::size_t(source.rank), 1)
                                                   : std::span(files);
        const TensorFiles values(tensor, averages ? tensor.reshard : StateTensor::Reshard::by_element, from, kind,
                                 source.elements);
        std::vector<float> part;
        for (const StateTensor::Shard& shard : tensor.shards)
            for (std::size_t first = 0; first < shard.values.size(); first += kStateReadAtOnce) {
                part.resize(std::min(kStateReadAtOnce, shard.values.size() - first));
                const std::int64_t in_flat = shard.first + std::int64_t(first);
                averages ? values.read_mean(in_flat, part) : values.read(in_flat, part);
                store(shard.values.subspan(first, part.size()), part);
            }
        if (averages)
            note = about + counted(source.ranks, "rank") +
                   (source.files == source.ranks ? std::string(" on other machines")
                                                 : " instead of " + std::to_string(source.files)) +
                   ": each starts with the mean of " + tensor.name + " over the checkpoint's ranks";
    }
    return note;
}

}  // namespace llmc
