// safetensors.cpp - safetensors files, unchanged and from a header without its length
#include "llmc/weights/safetensors.h"

#include "test/fuzz/target.h"

namespace {

const fuzz::Target safetensors("safetensors", [](std::string_view bytes) {
    const bool whole = bytes.size() > 8 && bytes[7] == 0;  // no header of text has a NUL
    const llmc::SafetensorsFile file(
        fuzz::file_with("x.safetensors", whole ? std::string(bytes) : fuzz::safetensors_of(bytes)));
    std::uint64_t end = 0;
    for (const llmc::TensorInfo& tensor : file.tensors()) {
        fuzz::must(tensor.begin == end && tensor.end >= end, "data one after the other");
        end = tensor.end;
        const std::int64_t elements = tensor.elements();
        const std::uint64_t size = tensor.end - tensor.begin;
        std::vector<std::byte> all(size);
        file.read_bytes(tensor, 0, all);
        fuzz::must(elements >= 0 && std::uint64_t(elements) <= size, "a number of elements");
        if (tensor.dtype != "F32" && tensor.dtype != "F16" && tensor.dtype != "BF16") continue;
        fuzz::must(size == std::uint64_t(elements) * (tensor.dtype == "F32" ? 4 : 2), "the bytes of its elements");
        std::vector<float> values(std::size_t(elements), 0.0f);
        file.read(tensor, 0, values);
        if (elements > 0) file.read(tensor, elements - 1, std::span(values).first(1));
    }
});

}  // namespace
