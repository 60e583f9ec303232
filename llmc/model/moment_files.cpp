// moment_files.cpp - writes ranges of the flat array by their owners, and reads ranges across files
#include "llmc/model/moment_files.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "kernels/base/error.h"
#include "llmc/model/element_ranges.h"

namespace llmc {
namespace {

constexpr const char *kFirst = "first_moments", *kSecond = "second_moments", *kRanges = "stretches",
                     *kMomentsFile = "a file of Adam moments";

const TensorInfo& tensor_of(const SafetensorsFile& file, const std::string& name) {
    const auto found = std::ranges::find(file.tensors(), name, &TensorInfo::name);
    require(found != file.tensors().end() && found->dtype == "F32" && found->shape.size() == 1, file.path(),
            "without a fp32 vector " + name, kMomentsFile);
    return *found;
}

}  // namespace

std::string moment_file_name(int number, int files) {
    char name[64];
    std::snprintf(name, sizeof name, "optimizer-%05d-of-%05d.safetensors", number, files);
    return name;
}

FileFingerprint write_moments(const std::filesystem::path& file, std::vector<OwnedShard> owned, std::int64_t elements,
                              std::span<const float> first_moments, std::span<const float> second_moments) {
    std::ranges::sort(owned, {}, &OwnedShard::offset);
    std::vector<ShardRange> ranges;
    std::int64_t size = 0;
    for (const OwnedShard& shard : owned) {
        if (shard.size == 0) continue;
        require(shard.offset == size, "the offset of a range of moments", shard.offset, std::to_string(size));
        ranges.push_back({.first = shard.first, .size = shard.size});
        size += shard.size;
    }
    for (const auto& moments : {first_moments, second_moments})
        require(std::ssize(moments) == size, "the number of moments to save", moments.size(), std::to_string(size));
    SafetensorsWriter writer(file, {{kFirst, "F32", {size}}, {kSecond, "F32", {size}}},
                             {{"elements", std::to_string(elements)}, {kRanges, text_of_ranges(ranges)}});
    writer.append(first_moments);
    writer.append(second_moments);
    return writer.finish();
}

MomentFiles::MomentFiles(const std::filesystem::path& folder, int files, std::int64_t elements) {
    for (int number = 0; number < files; ++number) {
        const auto& file = files_.emplace_back(folder / moment_file_name(number, files));
        const std::string of = metadata_of(file, "elements", kMomentsFile);
        require(of == std::to_string(elements), file.path() + ": the number of parameters", in_quotes(of),
                std::to_string(elements), "resume with the model of the checkpoint");
        std::int64_t offset = 0;
        for (const ShardRange& range : ranges_in(file, kRanges, kMomentsFile, elements)) {
            ranges_.push_back({.first = range.first, .size = range.size, .file = std::size_t(number),
                               .offset = offset});
            offset += range.size;
        }
        for (const char* const name : {kFirst, kSecond})
            require(tensor_of(file, name).elements() == offset, file.path() + ": the length of " + name,
                    tensor_of(file, name).elements(), std::to_string(offset) + ", the total of its ranges");
    }
    std::ranges::sort(ranges_, {}, &FileRange::first);
    std::int64_t end = 0;
    for (const FileRange& range : ranges_) {
        require(range.first == end, "the next range of Adam moments in " + folder.string(),
                "from element " + std::to_string(range.first), "each element once, here from " + std::to_string(end));
        end += range.size;
    }
    require(end == elements, "the number of Adam moments in " + folder.string(), end, std::to_string(elements));
}

void MomentFiles::read(std::int64_t first, std::span<float> first_moments, std::span<float> second_moments) const {
    require(first_moments.size() == second_moments.size(), "the lengths of both moments", first_moments.size(),
            std::to_string(second_moments.size()));
    const std::int64_t end = first + std::ssize(first_moments);
    for (const FileRange& range : ranges_) {
        const std::int64_t from = std::max(first, range.first), to = std::min(end, range.first + range.size);
        if (from >= to) continue;
        const SafetensorsFile& file = files_[range.file];
        for (const auto& [name, out] : {std::pair(kFirst, first_moments), std::pair(kSecond, second_moments)}) {
            const auto values = out.subspan(std::size_t(from - first), std::size_t(to - from));
            file.read(tensor_of(file, name), range.offset + from - range.first, values);
            const bool square = name == kSecond;
            const auto bad = std::ranges::find_if(
                values, [square](float x) { return !std::isfinite(x) || (square && std::signbit(x)); });
            if (bad != values.end())
                fail(file.path() + ": a value of " + name, *bad, square ? "finite, 0 or more" : "finite",
                     "resume from another checkpoint");
        }
    }
}

}  // namespace llmc
