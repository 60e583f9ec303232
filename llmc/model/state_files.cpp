// state_files.cpp - writes parts of tensors by their owners, and reads parts across the files of all ranks
#include "llmc/model/state_files.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "kernels/base/error.h"
#include "llmc/base/number_text.h"

namespace llmc {
namespace {

constexpr const char *kWorkers = "workers", *kEachRank = "each_rank";
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

std::string name_of(const StateQuantity& quantity, const StateTensor& tensor) {
    return tensor.parameter + '.' + quantity.name;
}
std::string of_shape(const StateTensor& tensor) { return " of " + describe_shape(tensor.shape); }

const TensorInfo* find_tensor(const SafetensorsFile& file, const std::string& name) {
    const auto found = std::ranges::find(file.tensors(), name, &TensorInfo::name);
    return found == file.tensors().end() ? nullptr : &*found;
}

// A tensor of a file: ranges of an array, one after the other. The array has the tensor of the state at `at`.
struct StoredArray {
    const TensorInfo* in = nullptr;  // null: the file has none
    ElementRange at{};
    std::vector<ElementRange> ranges{};
    std::vector<std::int64_t> shape{};  // expected in the file; empty: a vector
};

// The array is the tensor.
StoredArray own_array(const SafetensorsFile& file, const std::string& name, const StateTensor& tensor) {
    const ElementRange all{.first = 0, .size = tensor.elements()};
    const auto text = file.metadata().find(name);
    if (text == file.metadata().end()) return {find_tensor(file, name), all, {all}, tensor.shape};
    const std::string where = file.path() + ": its " + name, of = of_shape(tensor);
    require(text->second.ends_with(of), where, in_quotes(text->second), "FIRST+SIZE ..." + of,
            "resume with the model of the checkpoint");
    return {find_tensor(file, name), all,
            ranges_in(text->second.substr(0, text->second.size() - of.size()), where, all.size)};
}

// The flat array of all parameters, as in files of 0.3.0, which have one vector of each quantity ("momentum" or
// "first_moments"): of the whole array, or of the ranges in the metadata.
StoredArray flat_array(const SafetensorsFile& file, const std::string& quantity, const StateTensor& tensor,
                       const StateSource& source, const char* kind) {
    const auto spec = std::ranges::find(source.parameters, tensor.parameter, &ParameterSpec::name);
    const TensorInfo* in = find_tensor(file, quantity);
    if (!in) in = find_tensor(file, quantity + 's');
    if (!in || spec == source.parameters.end()) return {};
    const std::string& of = metadata_of(file, "elements", kind);
    require(of == std::to_string(source.elements), file.path() + ": the number of parameters", in_quotes(of),
            std::to_string(source.elements), "resume with the model of the checkpoint");
    const std::string key = quantity == "worker_error" ? "worker_stretches" : "stretches";
    const auto text = file.metadata().find(key);
    return {in, spec->range_in_files(),
            text == file.metadata().end() ? std::vector{ElementRange{0, source.elements}}
                                          : ranges_in(text->second, file.path() + ": its " + key, source.elements)};
}

// The files of one name, as far as they have one tensor.
class TensorFiles {
public:
    // `workers`: as workers_of(), of files that are averaged.
    TensorFiles(const StateQuantity& quantity, const StateTensor& tensor, bool averages, int workers,
                std::span<const SafetensorsFile> files, const StateSource& source, const std::string& kind)
        : name_(name_of(quantity, tensor)), non_negative_(quantity.non_negative), files_(files) {
        for (const SafetensorsFile& file : files) {
            StoredArray array = own_array(file, name_, tensor);
            if (!array.in) array = flat_array(file, quantity.name, tensor, source, kind.c_str());
            if (array.in) add(file, array);
        }
        require(!ranges_.empty(), files[0].path() + (files.size() > 1 ? " and the other ranks' files" : ""),
                "without the tensor " + name_, kind);
        std::vector<ElementRange> all;
        for (const StoredRange& range : ranges_) all.push_back(range.elements);
        if (averages && workers > 0) {
            ranks_of_element_ = workers;  // read() counts those of each element
        } else if (averages) {
            const std::int64_t elements = tensor.elements();
            const std::optional<std::int64_t> times = times_covered(all, elements);
            require(times && *times > 0, in_files(), "incomplete",
                    "values of all " + std::to_string(elements) + " elements, from equally many ranks",
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
        for (const StoredRange& range : ranges_) {
            const ElementRange held = common(range.elements, {first, std::ssize(to)});
            if (held.size <= 0) continue;
            const std::span<float> read = std::span(part).first(std::size_t(held.size));
            range.file->read(*range.in, range.offset + held.first - range.elements.first, read);
            for (std::size_t i = 0; i < read.size(); ++i) {
                if (!std::isfinite(read[i]) || (non_negative_ && std::signbit(read[i])))
                    fail(range.file->path() + ": a value of " + name_, read[i],
                         non_negative_ ? "finite, 0 or more" : "finite", "resume from another checkpoint");
                sums[std::size_t(held.first - first) + i] += double(read[i]);
            }
            found += held.size;
        }
        require(found == ranks_of_element_ * std::ssize(to), in_files(),
                "for " + std::to_string(found) + " of the elements from " + std::to_string(first),
                "each of " + std::to_string(to.size()) + " elements once", "resume from another checkpoint");
        for (std::size_t i = 0; i < to.size(); ++i) to[i] = float(sums[i] / double(ranks_of_element_));
    }

private:
    struct StoredRange {
        ElementRange elements;  // of the tensor
        const SafetensorsFile* file;
        const TensorInfo* in;
        std::int64_t offset;  // of the first element, in the file's tensor
    };

    void add(const SafetensorsFile& file, const StoredArray& array) {
        std::int64_t offset = 0;
        for (const ElementRange& range : array.ranges) {
            const ElementRange held = common(range, array.at);
            if (held.size > 0)
                ranges_.push_back({.elements = {held.first - array.at.first, held.size}, .file = &file,
                                   .in = array.in, .offset = offset + held.first - range.first});
            offset += range.size;
        }
        const std::vector<std::int64_t> shape = array.shape.empty() ? std::vector{offset} : array.shape;
        require(array.in->dtype == "F32" && array.in->shape == shape, file.path() + ": " + array.in->name,
                array.in->dtype + ' ' + describe_shape(array.in->shape), "F32 " + describe_shape(shape),
                "resume with the model of the checkpoint");
    }
    std::string in_files() const {
        return name_ + " in " + files_[0].path() + (files_.size() > 1 ? " and the other ranks' files" : "");
    }

    const std::string name_;
    const bool non_negative_;
    std::span<const SafetensorsFile> files_;
    std::vector<StoredRange> ranges_;  // in rank order
    std::int64_t ranks_of_element_ = 1;
};

std::string names_of(const StateFile& file) {
    std::string names;
    for (const StateQuantity& quantity : file.quantities) names += (names.empty() ? "" : " and ") + quantity.name;
    return names;
}

}  // namespace

std::string text_of_ranges(const std::vector<ElementRange>& ranges) {
    std::string text;
    for (const ElementRange& range : ranges)
        text.append(text.empty() ? "" : " ").append(std::to_string(range.first)).append("+").append(
            std::to_string(range.size));
    return text;
}

const std::string& metadata_of(const SafetensorsFile& file, const std::string& key, const char* kind) {
    const auto found = file.metadata().find(key);
    require(found != file.metadata().end(), file.path(), "without \"" + key + "\" in its metadata", kind);
    return found->second;
}

std::vector<ElementRange> ranges_in(const std::string& text, const std::string& where, std::int64_t elements) {
    std::vector<ElementRange> all;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        std::istringstream numbers(word);
        ElementRange range;
        char plus = 0;
        require(numbers >> range.first >> plus >> range.size && plus == '+' && numbers.peek() == EOF &&
                    range.first >= 0 && range.size >= 0 && range.first <= elements &&
                    range.size <= elements - range.first,
                where, in_quotes(text), "FIRST+SIZE ... within the " + std::to_string(elements) + " elements");
        all.push_back(range);
    }
    require(are_disjoint(all), where, in_quotes(text), "each element once");
    return all;
}

bool are_disjoint(std::vector<ElementRange> ranges) {
    std::erase_if(ranges, [](const ElementRange& range) { return range.size == 0; });
    std::ranges::sort(ranges, {}, &ElementRange::first);
    return std::ranges::adjacent_find(ranges, [](const ElementRange& a, const ElementRange& b) {
               return a.end() > b.first;
           }) == ranges.end();
}

std::optional<std::int64_t> times_covered(const std::vector<ElementRange>& ranges, std::int64_t elements) {
    std::map<std::int64_t, std::int64_t> changes{{0, 0}, {elements, 0}};
    for (const ElementRange& range : ranges) {
        ++changes[range.first];
        --changes[range.end()];
    }
    const std::int64_t times = changes.begin()->second;
    std::int64_t now = 0;
    for (const auto& [element, change] : changes) {
        now += change;
        if (element < elements && now != times) return std::nullopt;
    }
    return times;
}

std::string state_file_name(const std::string& name, int number, int files) {
    return name + format("-%05d-of-%05d.safetensors", number, files);
}

FileFingerprint write_state(const std::filesystem::path& path, const StateFile& file, std::span<const float> values) {
    require(std::ssize(values) == file.elements(), "the number of values to save in " + path.filename().string(),
            values.size(), std::to_string(file.elements()));
    std::vector<TensorToWrite> tensors;
    Metadata metadata;
    if (file.workers > 0) metadata[kWorkers] = std::to_string(file.workers);
    for (const StateQuantity& quantity : file.quantities)
        for (const StateTensor& tensor : quantity.tensors) {
            std::vector<ElementRange> held;
            std::int64_t elements = 0;
            for (const auto& [first, of] : tensor.shards) {
                held.push_back({first, std::ssize(of)});
                elements += std::ssize(of);
            }
            tensors.push_back({name_of(quantity, tensor), "F32", tensor.shape});
            if (elements == tensor.elements()) continue;
            tensors.back().shape = {elements};
            metadata[tensors.back().name] = text_of_ranges(held) + of_shape(tensor);
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
    for (int number = 0; number < source.files; ++number)
        files.emplace_back(source.folder / state_file_name(file.name, number, source.files));
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
    for (const StateQuantity& quantity : file.quantities) {
        const bool own = quantity.of_each_rank || workers > 0,
                   averages = own && (!same_ranks || workers != file.workers);
        // Of this rank, or of its worker, whose ranks may have had other shards.
        const std::size_t ranks = workers > 0 && !quantity.of_each_rank ? files.size() / std::size_t(workers) : 1;
        const auto from = own && !averages
                              ? std::span(files).subspan(std::size_t(source.rank) / ranks * ranks, ranks)
                              : std::span(files);
        std::vector<float> part;
        for (const StateTensor& tensor : quantity.tensors) {
            const TensorFiles values(quantity, tensor, averages, workers, from, source, kind);
            for (const StateShard& shard : tensor.shards)
                for (std::size_t first = 0; first < shard.values.size(); first += kStateReadAtOnce) {
                    part.resize(std::min(kStateReadAtOnce, shard.values.size() - first));
                    values.read(shard.first + std::int64_t(first), part);
                    store(shard.values.subspan(first, part.size()), part);
                }
        }
        if (averages && source.files > 1) averaged += (averaged.empty() ? "" : " and ") + quantity.name;
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
