// llmc_file_test.cpp - llm.c's model files: round trip and layout
#include "llmc/weights/llmc_file.h"

#include <array>
#include <bit>
#include <cstring>

#include "llmc/weights/saved_model.h"
#include "test/support/model_support.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using test::Contains;
using kernels::DType;

namespace {

const ModelConfig kExported{2, 3, 72, 10, 61};

struct Exported {
    test::ScratchFolder scratch;
    ParameterTable table{kExported};
    std::vector<float> flat = test::varied_weights(table);
    std::filesystem::path file = scratch / "model_00000100.bin";
    explicit Exported(DType dtype = DType::fp32) { write_llmc_file(file, table, flat, dtype); }
    // The error after one word of the header is changed.
    std::string fault(std::size_t word, std::int32_t value) const {
        std::string bytes = test::read_bytes(file);
        std::memcpy(bytes.data() + 4 * word, &value, 4);
        return fault_of(bytes);
    }
    std::string fault_of(const std::string& bytes) const {
        const std::filesystem::path changed = scratch / "changed.bin";
        return test::fault_of_file(changed, bytes, [&] { test::weights_in(changed); });
    }
};

template <class T> T at(const std::string& bytes, std::size_t offset) {
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

}  // namespace

TEST_CASE("a model in llm.c's format is read back: fp32 bit-identical, bf16 rounded to nearest", "[llmc_file]") {
    const DType dtype = GENERATE(DType::fp32, DType::bf16);
    Exported model(dtype);
    CHECK(SavedModel(model.file).config() == kExported);
    CHECK(SavedModel(model.file).dropout().empty());
    const auto read = test::weights_in(model.file);
    if (dtype == DType::bf16)
        for (float& x : model.flat) x = kernels::bf16_to_float(kernels::bf16_from_float(x));
    CHECK(test::same_bits(read, model.flat));
    CHECK(read[3] == (dtype == DType::bf16 ? 1 : 1 + 0x1p-8f));
    CHECK(read[4] == (dtype == DType::bf16 ? 1 + 0x1p-6f : 1 + 3 * 0x1p-8f));
    // Writing rounded values again is exact.
    const std::string first = test::read_bytes(model.file);
    write_llmc_file(model.file, model.table, read, dtype);
    CHECK(test::read_bytes(model.file) == first);
}

TEST_CASE("a model of llm.c is recognized by its contents, not its name", "[llmc_file]") {
    Exported model;
    CHECK(begins_as_llmc_file(model.file));
    const auto other_name = model.scratch / "model";
    std::filesystem::copy(model.file, other_name);
    CHECK(SavedModel(other_name).config() == SavedModel(model.file).config());
    CHECK(!begins_as_llmc_file(model.scratch.path()));
    CHECK(!begins_as_llmc_file(model.scratch / "none"));
}

TEST_CASE("the file has llm.c's layout", "[llmc_file]") {
    const std::size_t v = 128, c = 72, t = 10, l = 2;  // padded
    const auto element = GENERATE(4u, 2u);
    const Exported model(element == 4 ? DType::fp32 : DType::bf16);
    const std::string bytes = test::read_bytes(model.file);
    const std::array<std::int32_t, 8> wanted{20240326, element == 4 ? 3 : 5, 10, 61, 2, 3, 72, 128};
    for (std::size_t word = 0; word < 256; ++word)
        REQUIRE(at<std::int32_t>(bytes, 4 * word) == (word < 8 ? wanted[word] : 0));
    // Tensor by tensor in the order of the format, each for all layers.
    struct Entry { const char* name; std::size_t elements; bool every_layer = true; };
    const Entry entries[]{
        {"wte.weight", v * c, false}, {"wpe.weight", t * c, false}, {"ln_1.weight", c}, {"ln_1.bias", c},
        {"attn.c_attn.weight", 3 * c * c}, {"attn.c_attn.bias", 3 * c}, {"attn.c_proj.weight", c * c},
        {"attn.c_proj.bias", c}, {"ln_2.weight", c}, {"ln_2.bias", c}, {"mlp.c_fc.weight", 4 * c * c},
        {"mlp.c_fc.bias", 4 * c}, {"mlp.c_proj.weight", 4 * c * c}, {"mlp.c_proj.bias", c}, {"ln_f.weight", c, false},
        {"ln_f.bias", c, false}};
    std::size_t offset = 1024;
    for (const Entry& entry : entries) {
        for (std::size_t layer = 0; layer < (entry.every_layer ? l : 1); ++layer) {
            const std::string layer_name = entry.every_layer ? "h." + std::to_string(layer) + "." : "";
            CAPTURE(layer_name + entry.name);
            const auto& tensors = model.table.tensors();
            const auto spec = std::find_if(tensors.begin(), tensors.end(),
                                           [&](const auto& each) { return each.name == layer_name + entry.name; });
            REQUIRE(spec != tensors.end());
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < entry.elements; ++i, offset += element) {
                const float ours = model.flat[std::size_t(spec->offset) + i];
                wrong += element == 4 ? std::bit_cast<std::uint32_t>(ours) != at<std::uint32_t>(bytes, offset)
                                      : kernels::bf16_from_float(ours).bits != at<std::uint16_t>(bytes, offset);
            }
            CHECK(wrong == 0);
        }
    }
    CHECK(offset == bytes.size());
}

TEST_CASE("another padding of the vocabulary is accepted, and its contents are ignored", "[llmc_file]") {
    Exported model;
    const auto padding = GENERATE(61u, 64u, 192u);
    std::string bytes = test::read_bytes(model.file), junk;
    for (std::size_t i = 0; i < (padding - 61) * 72; ++i) junk += std::string("\0\0\xc0\x7f", 4);  // NaN
    bytes = bytes.substr(0, 1024 + 4 * 61 * 72) + junk + bytes.substr(1024 + 4 * 128 * 72);
    std::memcpy(bytes.data() + 4 * 7, &padding, 4);
    test::write_bytes(model.file, bytes);
    CHECK(test::same_bits(test::weights_in(model.file), model.flat));
}

TEST_CASE("other files, versions and types, and invalid sizes in llm.c's header, are refused by name", "[llmc_file]") {
    const Exported model;
    const auto [word, value, named] = GENERATE(table<std::size_t, std::int32_t, std::string>({
        {0, 20240527, "magic number is 20240527; expected 20240326"}, {0, 20240527, "optimizer's state"},
        {0, 20240520, "token shard"}, {0, 20240520, "--train-data"}, {0, 20240803, "Llama 3"},
        {0, 0x04034b50, "PyTorch"}, {0, 0x04034b50, "save_pretrained"},
        {0, 0x26032420, "magic number is 637740064; expected 20240326"},
        {1, 5, "the size is "}, {1, 5, "in bf16"}, {1, 5, "damaged"},  // the data has the other type
        {2, 0, "the number of positions is 0"}, {2, 11, "the size is"}, {2, INT32_MAX, "positions is 2147483647"},
        {3, -1, "the vocabulary is -1"}, {3, 129, "the padded vocabulary is 128; expected between the vocabulary of"},
        {3, INT32_MAX, "the vocabulary is 2147483647"}, {4, 0, "the number of layers is 0"}, {4, 3, "the size is"},
        {4, 1 << 16, "the size is"}, {4, INT32_MIN, "the number of layers is -2147483648"},
        {5, 0, "the number of heads is 0"}, {5, 5, "a multiple of the 5 heads"}, {5, 18, "head size"},
        {6, 0, "the number of channels is 0"}, {6, 144, "the size is"}, {6, INT32_MAX, "channels is 2147483647"},
        {7, 0, "the padded vocabulary is 0"}, {7, 60, "the padded vocabulary is 60"}, {7, 129, "the size is"},
        {7, INT32_MAX, "the padded vocabulary is 2147483647"}, {7, -128, "the padded vocabulary is -128"}}));
    CAPTURE(word, value);
    CHECK_THAT(model.fault(word, value), Contains(named));
    CHECK(model.fault(0, 20240326) == "accepted");
    for (const int version : {-1, 0, 1, 2, 4, 6})
        CHECK_THAT(model.fault(1, version), Contains("the version is " + std::to_string(version) +
                                                     "; expected 3 (fp32) or 5 (bf16)"));
    // All sizes at their maximum do not overflow.
    std::string bytes = test::read_bytes(model.file);
    const std::array<std::int32_t, 6> most{1 << 24, 1 << 24, 1 << 16, 1 << 16, 1 << 20, 1 << 24};
    std::memcpy(bytes.data() + 8, most.data(), sizeof most);
    CHECK_THAT(model.fault_of(bytes), Contains("expected 3458908824730076160 bytes"));
}

TEST_CASE("a file of llm.c that is truncated or too long is refused", "[llmc_file]") {
    const Exported model(GENERATE(DType::fp32, DType::bf16));
    const std::string whole = test::read_bytes(model.file);
    for (const std::size_t length : {0u, 3u, 4u, 28u, 1023u})
        CHECK_THAT(model.fault_of(whole.substr(0, length)),
                   Contains("is " + std::to_string(length) + " bytes; expected at least the 1024 bytes"));
    for (const std::size_t length : {std::size_t(1024), whole.size() / 2, whole.size() - 2, whole.size() - 1})
        CHECK_THAT(model.fault_of(whole.substr(0, length)),
                   Contains("expected " + std::to_string(whole.size()) + " bytes") && Contains("cut off"));
    for (const std::size_t more : {1, 2, 4096})
        CHECK_THAT(model.fault_of(whole + std::string(more, '\0')),
                   Contains("expected " + std::to_string(whole.size()) + " bytes") && Contains("damaged"));
    CHECK_THAT(test::error_of([&] { SavedModel(model.scratch / "none.bin"); }),
               Contains("none.bin is missing"));
}

TEST_CASE("the error names a value that is not finite, or that bf16 cannot represent", "[llmc_file]") {
    Exported model;
    std::string bytes = test::read_bytes(model.file);
    bytes.replace(bytes.size() - 4, 4, std::string("\0\0\x80\x7f", 4));
    CHECK_THAT(model.fault_of(bytes), Contains("a value of tensor \"ln_f.bias\" is inf; expected finite"));

    const std::string before = test::read_bytes(model.file);
    model.flat[2] = 3.4e38f;  // the next bf16 is infinity
    CHECK_THAT(test::error_of([&] { write_llmc_file(model.file, model.table, model.flat, DType::bf16); }),
               Contains("a value of wte.weight is 3.399999952e+38") && Contains("export in fp32"));
    CHECK(test::read_bytes(model.file) == before);
    CHECK(test::names_in(model.scratch.path()).size() == 2);  // nothing left behind
    CHECK(test::error_of([&] { write_llmc_file(model.file, model.table, model.flat, DType::fp32); }) == "accepted");
}
