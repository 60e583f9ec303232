// safetensors.cpp - reads, checks and writes files of named tensors
#include "llmc/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/device/types.h"
#include "llmc/base/json_text.h"
#include "llmc/base/number_text.h"

namespace llmc {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so is the code below");

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;  // the limit of Hugging Face's library
constexpr const char* kCopyAgain = "the file is damaged or not a safetensors file: copy or save it again";

constexpr std::array<std::pair<std::string_view, unsigned>, 13> kElementBytes{
    {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"I16", 2}, {"I8", 1},
     {"U64", 8}, {"U32", 4}, {"U16", 2}, {"U8", 1}, {"BOOL", 1}}};
std::optional<unsigned> element_bytes(std::string_view dtype) {
    for (const auto& [name, bytes] : kElementBytes)
        if (name == dtype) return bytes;
    return std::nullopt;
}

float half_to_float(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31)
        return fraction ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
    return sign *
           (exponent == 0 ? std::ldexp(float(fraction), -24) : std::ldexp(float(fraction + 1024), exponent - 25));
}

// The number of bytes of a tensor; nullopt if it does not fit in 64 bits.
std::optional<std::uint64_t> byte_count(const std::vector<std::int64_t>& shape, unsigned element) {
    std::uint64_t bytes = element;
    for (const std::int64_t extent : shape)
        if (__builtin_mul_overflow(bytes, std::uint64_t(extent), &bytes)) return std::nullopt;
    return bytes;
}

// `where` names file and tensor.
TensorInfo parse_tensor(const std::string& where, const std::string& name, const nlohmann::json& entry) {
    const auto member = [&](const char* key) -> const nlohmann::json& {
        if (!entry.is_object() || !entry.contains(key))
            fail(where, excerpt(entry), std::string("an object with ") + in_quotes(key), kCopyAgain);
        return entry[key];
    };
    const auto is_count = [](const nlohmann::json& value) {
        return value.is_number_unsigned() && value.get<std::uint64_t>() <= INT64_MAX;
    };
    const auto are_counts = [&](const nlohmann::json& value) {
        return value.is_array() && std::all_of(value.begin(), value.end(), is_count);
    };

    TensorInfo tensor;
    tensor.name = name;
    const auto& dtype = member("dtype");
    const auto bytes = dtype.is_string() ? element_bytes(dtype.get_ref<const std::string&>()) : std::nullopt;
    if (!bytes)
        fail(where + ": the dtype", excerpt(dtype), "F32, F16, BF16 or another dtype of whole bytes",
             "save the tensors as F32");
    tensor.dtype = dtype.get<std::string>();

    const auto& shape = member("shape");
    if (!are_counts(shape)) fail(where + ": the shape", excerpt(shape), "a list of non-negative integers", kCopyAgain);
    for (const auto& extent : shape) tensor.shape.push_back(extent.get<std::int64_t>());

    const auto& offsets = member("data_offsets");
    if (!are_counts(offsets) || offsets.size() != 2)
        fail(where + ": data_offsets", excerpt(offsets), "two non-negative integers", kCopyAgain);
    tensor.begin = offsets[0].get<std::uint64_t>();
    tensor.end = offsets[1].get<std::uint64_t>();
    const auto size = byte_count(tensor.shape, *bytes);
    if (!size || tensor.end < tensor.begin || tensor.end - tensor.begin != *size) {
        const std::string wanted = size ? std::to_string(*size) + " bytes" : std::string("less than 2^64 bytes");
        fail(where + ": data_offsets", excerpt(offsets),
             wanted + " for shape " + describe_shape(tensor.shape) + " of " + tensor.dtype, kCopyAgain);
    }
    return tensor;
}

}  // namespace

std::int64_t TensorInfo::elements() const {
    std::uint64_t product = 1;  // may wrap around if another extent is 0
    for (const std::int64_t extent : shape) product *= std::uint64_t(extent);
    return std::int64_t(product);
}

std::string describe_shape(const std::vector<std::int64_t>& shape) {
    std::string text = "[";
    constexpr std::size_t kShown = 8;
    for (std::size_t i = 0; i < std::min(shape.size(), kShown); ++i)
        text.append(i ? ", " : "").append(std::to_string(shape[i]));
    return text + (shape.size() > kShown ? ", ...]" : "]");
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path.string(), "the safetensors file") {
    parse();
    check_extents();
}

void SafetensorsFile::parse() {
    const std::uint64_t size = file_.size();
    require(size >= kLengthBytes + 2, path() + ": the size", counted(std::int64_t(size), "byte"),
            "at least the 10 bytes of the header's length and an empty header", kCopyAgain);
    std::uint64_t length = 0;
    file_.read(0, std::as_writable_bytes(std::span(&length, 1)));
    const std::uint64_t most = std::min<std::uint64_t>(size - kLengthBytes, kLongestHeader);
    require(length >= 2 && length <= most, path() + ": the header's length", length,
            "between 2 and " + std::to_string(most) + " bytes", kCopyAgain);
    data_begin_ = kLengthBytes + length;

    std::string text(std::size_t(length), '\0');
    file_.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
    const auto header = parse_json_object(path() + ": the header", text, kCopyAgain);
    for (const auto& [name, entry] : header.items()) {
        if (name != "__metadata__") {
            tensors_.push_back(parse_tensor(path() + ": tensor " + in_quotes(name), name, entry));
            continue;
        }
        if (!entry.is_object()) fail(path() + ": __metadata__", excerpt(entry), "an object of strings", kCopyAgain);
        for (const auto& [key, value] : entry.items()) {
            if (!value.is_string())
                fail(path() + ": __metadata__ " + in_quotes(key), excerpt(value), "a string", kCopyAgain);
            metadata_[key] = value.get<std::string>();
        }
    }
    const auto by_position = [](const TensorInfo& a, const TensorInfo& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    };
    std::stable_sort(tensors_.begin(), tensors_.end(), by_position);
}

void SafetensorsFile::check_extents() const {
    const std::uint64_t size = file_.size() - data_begin_;
    const std::string available = std::to_string(size);
    std::uint64_t end = 0;
    for (const TensorInfo& tensor : tensors_) {
        const std::string data = path() + ": tensor " + in_quotes(tensor.name) + ": ";
        require(tensor.begin == end, data + "the start offset", tensor.begin,
                std::to_string(end) + ", the end of the tensor before it", kCopyAgain);
        require(tensor.end <= size, data + "the end offset", tensor.end,
                "at most " + available + ", the bytes of data in the file",
                "the file is cut off: copy or save it again");
        end = tensor.end;
    }
    require(end == size, path() + ": the length of the data", available,
            std::to_string(end) + ", the end of the last tensor", kCopyAgain);
}

void SafetensorsFile::read(const TensorInfo& tensor, std::int64_t first, std::span<float> out) const {
    const std::string where = path() + ": tensor " + in_quotes(tensor.name);
    require(tensor.dtype == "F32" || tensor.dtype == "F16" || tensor.dtype == "BF16", where + ": the dtype",
            tensor.dtype, "F32, F16 or BF16", "save the tensor as F32");
    require(first >= 0 && first <= tensor.elements() && std::int64_t(out.size()) <= tensor.elements() - first,
            where + ": the range of elements", std::to_string(out.size()) + " from " + std::to_string(first),
            "a range within its " + std::to_string(tensor.elements()) + " elements");
    const std::uint64_t offset = std::uint64_t(first) * (tensor.dtype == "F32" ? 4 : 2);
    read_floats(file_, data_begin_ + tensor.begin + offset, tensor.dtype, out);
}

void read_floats(const InputFile& file, std::uint64_t offset, std::string_view dtype, std::span<float> out) {
    const auto bytes = std::as_writable_bytes(out);
    if (dtype == "F32") return file.read(offset, bytes);
    // Into the upper half of `out`: a float then only overwrites values that were converted before, or its own.
    const auto source = bytes.last(2 * out.size());
    file.read(offset, source);
    for (std::size_t i = 0; i < out.size(); ++i) {
        std::uint16_t bits;
        std::memcpy(&bits, source.data() + 2 * i, 2);
        out[i] = dtype == "F16" ? half_to_float(bits) : kernels::bf16_to_float({bits});
    }
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                                     const Metadata& metadata)
    : path_(path.string()),
      file_(path) {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    if (!metadata.empty()) header["__metadata__"] = metadata;
    for (const TensorToWrite& tensor : tensors) {
        const auto element = element_bytes(tensor.dtype);
        const auto size = element ? byte_count(tensor.shape, *element) : std::nullopt;
        require(size && !header.contains(tensor.name) && tensor.name != "__metadata__",
                path_ + ": tensor " + in_quotes(tensor.name),
                tensor.dtype + " of shape " + describe_shape(tensor.shape),
                "a known dtype, a size that fits in 64 bits and a unique name");
        const std::uint64_t end = expected_ + size.value_or(0);  // g++ -O1 warns that *size may be uninitialized
        header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {expected_, end}}};
        expected_ = end;
    }
    std::string text = text_of(header);
    text.resize(round_up(text.size(), 8), ' ');  // the data then starts aligned for every dtype
    const std::uint64_t length = text.size();

    file_.append(std::as_bytes(std::span(&length, 1)));
    file_.append(std::as_bytes(std::span(text)));
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
    require(bytes.size() <= expected_ - written_, path_ + ": the data to append",
            std::to_string(bytes.size()) + " bytes",
            "at most the remaining " + std::to_string(expected_ - written_) + " bytes of the header's tensors");
    file_.append(bytes);
    written_ += bytes.size();
}

FileFingerprint SafetensorsWriter::finish() {
    require(written_ == expected_, path_ + ": the bytes of data appended", written_,
            std::to_string(expected_) + " according to the header");
    return file_.finish();
}

}  // namespace llmc
