// safetensors_test.cpp - safetensors files: round trip, and an error for every kind of damage
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/device/types.h"
#include "llmc/weights/safetensors.h"
#include "test/support/scratch_folder.h"

using namespace llmc;
using namespace test;

namespace {

std::string file_of(const std::string& header, const std::string& data) {
    const std::uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}
const std::string kGood =
    R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[24,32]}})";

std::string open_fault(const std::string& bytes) {
    const ScratchFolder folder;
    const auto path = folder / "x.safetensors";
    return fault_of_file(path, bytes, [&] { SafetensorsFile file(path); });
}
std::string header_fault(const std::string& header) { return open_fault(file_of(header, std::string(32, 'x'))); }

std::vector<float> read_all(const SafetensorsFile& file, const TensorInfo& tensor) {
    std::vector<float> values(std::size_t(tensor.elements()));
    file.read(tensor, 0, values);
    return values;
}

}  // namespace

TEST_CASE("tensors written in parts are read back bit-identical, in order, with metadata", "[safetensors]") {
    const ScratchFolder folder;
    const auto path = folder / "m.safetensors";
    const std::vector<float> values{1, -0.0f, 3e-45f, 3.4e38f, -5, 6, 7, 8};
    {
        const std::vector<TensorToWrite> tensors{{"z", "F32", {2, 3}}, {"empty", "F32", {0, 4}},
                                                 {"a \"quoted\"", "F32", {2}}};
        SafetensorsWriter writer(path, tensors, {{"format", "pt"}, {"k", "v"}});
        writer.append(std::span<const float>(values).first(1));
        writer.append(std::span<const float>(values).subspan(1, 6));
        writer.append(std::span<const float>(values).subspan(7));
        writer.finish();
    }
    const SafetensorsFile file(path);
    CHECK(file.metadata() == Metadata{{"format", "pt"}, {"k", "v"}});
    REQUIRE(file.tensors().size() == 3);
    CHECK(file.tensors()[0].name == "z");
    CHECK(file.tensors()[1].name == "empty");
    CHECK(file.tensors()[2].name == "a \"quoted\"");
    CHECK(file.tensors()[0].shape == std::vector<std::int64_t>{2, 3});
    CHECK(describe_shape(file.tensors()[0].shape) == "[2, 3]");
    CHECK(std::memcmp(read_all(file, file.tensors()[0]).data(), values.data(), 24) == 0);
    CHECK(read_all(file, file.tensors()[2]) == std::vector<float>{7, 8});
    std::vector<float> middle(2);
    file.read(file.tensors()[0], 3, middle);
    CHECK(std::memcmp(middle.data(), &values[3], 8) == 0);
}

TEST_CASE("the data of a written file starts at a multiple of 8 bytes", "[safetensors]") {
    const ScratchFolder folder;
    for (std::size_t length = 1; length < 10; ++length) {
        const auto path = folder / "m.safetensors";
        SafetensorsWriter writer(path, {{std::string(length, 'n'), "F32", {1}}}, {});
        writer.append(std::vector<float>{1});
        writer.finish();
        std::uint64_t header = 0;
        const std::string bytes = read_bytes(path);
        std::memcpy(&header, bytes.data(), 8);
        CHECK(header % 8 == 0);
        CHECK(bytes.size() == 8 + header + 4);
    }
}

TEST_CASE("every F16 and BF16 value is widened exactly", "[safetensors]") {
    std::string data;
    for (unsigned bits = 0; bits < 65536; ++bits) data.append({char(bits & 255), char(bits >> 8)});
    std::string header = R"({"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]},)"
                         R"("b":{"dtype":"BF16","shape":[65536],"data_offsets":[131072,262144]}})";
    if (header.size() % 2 == 0) header += ' ';  // so that no value is aligned
    const ScratchFolder folder;
    write_bytes(folder / "x", file_of(header, data + data));
    const SafetensorsFile file(folder / "x");
    const auto half = read_all(file, file.tensors()[0]), brain = read_all(file, file.tensors()[1]);
    std::size_t wrong = 0;
    const auto check = [&](float read, float expected) {
        wrong += std::bit_cast<std::uint32_t>(read) != std::bit_cast<std::uint32_t>(expected);
    };
    // Positive F16 values ascend in steps of 2^-24, which double at every power of two from 2^-13 on.
    float value = 0, step = 0x1p-24f;
    for (unsigned bits = 0; bits < 0x7c00; ++bits, value += step) {
        if (bits >= 2048 && bits % 1024 == 0) step *= 2;
        check(half[bits], value);
        check(half[bits | 0x8000], -value);
    }
    check(half[0x3c00], 1);
    check(value, 65536);
    check(half[0x7c00], INFINITY);
    check(half[0xfc00], -INFINITY);
    for (unsigned bits = 0x7c01; bits < 0x8000; ++bits)
        wrong += !std::isnan(half[bits]) + !std::isnan(half[bits | 0x8000]);
    // BF16 is the upper half of a float.
    for (unsigned bits = 0; bits < 65536; ++bits) check(brain[bits], std::bit_cast<float>(bits << 16));
    CHECK(wrong == 0);
}

TEST_CASE("a tensor of another dtype is listed but cannot be read as floats", "[safetensors]") {
    const ScratchFolder folder;
    write_bytes(folder / "x",
                file_of(R"({"mask":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}})", "abcd"));
    const SafetensorsFile file(folder / "x");
    std::string bytes(4, ' ');
    file.read_bytes(file.tensors()[0], 0, std::as_writable_bytes(std::span(bytes)));
    CHECK(bytes == "abcd");
    CHECK_THAT(error_of([&] { read_all(file, file.tensors()[0]); }),
               Contains("\"mask\"") && Contains("BOOL") && Contains("F32, F16 or BF16"));
}

TEST_CASE("a file truncated at any byte is refused", "[safetensors]") {
    CHECK(open_fault(file_of("{}", "")) == "accepted");  // without tensors
    const std::string whole = file_of(kGood, std::string(32, 'x'));
    CHECK(open_fault(whole) == "accepted");
    for (std::size_t length = 0; length < whole.size(); ++length) {
        CAPTURE(length);
        CHECK(open_fault(whole.substr(0, length)) != "accepted");
    }
    CHECK_THAT(open_fault(whole.substr(0, 7)), Contains("7 bytes") && Contains("at least the 10 bytes"));
    CHECK_THAT(open_fault(std::string(8, '\xff')), Contains("the size is 8 bytes; expected at least the 10 bytes"));
    CHECK_THAT(open_fault(whole.substr(0, 40)),
               Contains("header's length is " + std::to_string(kGood.size())) && Contains("between 2 and 32 bytes"));
    CHECK_THAT(open_fault(whole.substr(0, whole.size() - 1)),
               Contains("\"b\"") && Contains("end offset is 32") && Contains("at most 31, the bytes"));
    CHECK_THAT(open_fault(whole + "x"), Contains("length of the data is 33") && Contains("expected 32"));
}

TEST_CASE("an inconsistent header is refused", "[safetensors]") {
    CHECK(header_fault(kGood) == "accepted");
    CHECK_THAT(open_fault(std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8) + kGood),
               Contains("header's length is 18446744073709551615"));
    CHECK_THAT(header_fault(kGood.substr(1)), Contains("invalid at byte"));
    CHECK_THAT(header_fault(kGood + "{"), Contains("invalid at byte"));
    CHECK_THAT(header_fault(std::string(100000, '[')), Contains("100 levels deep"));
    CHECK_THAT(header_fault("[1, 2]"), Contains("[1,2]") && Contains("a JSON object"));
    CHECK_THAT(header_fault("{\"\xff\": 1}"), Contains("invalid"));
    struct Row {
        std::string from, to;
        std::vector<std::string> says;
    };
    for (const auto& [from, to, says] : std::vector<Row>{
             {"\"F32\"", "\"F33\"", {"\"a\"", "F33"}}, {"\"F32\"", "32", {"dtype is 32"}},
             {"\"dtype\"", "\"dtyp\"", {"\"a\"", "an object with \"dtype\""}},
             {"[2,3]", "[2,-3]", {"[2,-3]", "non-negative integers"}}, {"[2,3]", "[2.0,3]", {"non-negative integers"}},
             {"[2,3]", "6", {"the shape is 6"}}, {"[2,3]", "[2,4]", {"\"a\"", "32 bytes for shape [2, 4] of F32"}},
             {"[2,3]", "[4294967296,4294967296]", {"less than 2^64 bytes"}},
             {"[2,3]", "[4611686018427387904,4,2,3]", {"less than 2^64 bytes"}},
             {"[0,24]", "[0,23]", {"[0,23]", "24 bytes"}}, {"[0,24]", "[24,0]", {"[24,0]"}},
             {"[0,24]", "[0,24,1]", {"two non-negative integers"}},
             {"[0,24]", "[-8,16]", {"two non-negative integers"}},
             {"[24,32]", "[20,28]", {"\"b\"", "start offset is 20", "expected 24"}},  // overlap
             {"[0,24]", "[8,32]", {"\"a\"", "start offset is 8"}},                    // gap at the start
             {"[24,32]", "[28,36]", {"\"b\"", "start offset is 28"}},                 // gap
             {"\"b\"", "\"a\"", {"\"a\"", "each key once"}},
             {"{\"a\"", "{\"__metadata__\":{\"n\":1},\"a\"", {"__metadata__ \"n\" is 1", "a string"}},
             {"{\"a\"", "{\"__metadata__\":7,\"a\"", {"__metadata__ is 7"}},
             {"{\"a\"", "{\"__metadata__\":{\"n\":\"1\"},\"a\"", {"accepted"}}}) {
        std::string header = kGood;
        const auto place = header.find(from);
        REQUIRE(place != std::string::npos);
        const std::string fault = header_fault(header.replace(place, from.size(), to));
        for (const std::string& part : says) CHECK_THAT(fault, Contains(part));
    }
}

// Found by test/fuzz.
TEST_CASE("names and shapes of any length and characters fit in a one-line message", "[safetensors]") {
    const auto fault = [](const std::string& name, const std::string& shape) {
        return header_fault("{\"" + name + R"(":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[0,8]}})");
    };
    CHECK_THAT(fault(R"(a\n\u001b\u007f\"é)", "1"), Contains(R"(tensor "a\x0a\x1b\x7f"é": )"));
    const std::string x(299, 'x');
    CHECK_THAT(fault(x + "yz", "1"), Contains(x + "y...\"") && !Contains("yz"));
    CHECK_THAT(fault(x + "é", "1"), Contains(x + "...\""));
    std::string ones = "1";
    for (int i = 0; i < 1000; ++i) ones += ",1";
    CHECK_THAT(fault("a", ones), Contains("for shape [1, 1, 1, 1, 1, 1, 1, 1, ...] of F32"));
}

// Found by test/fuzz.
TEST_CASE("if one extent is 0, the others may have any size", "[safetensors]") {
    const ScratchFolder folder;
    const auto path = folder / "m.safetensors";
    write_bytes(path, file_of(
        R"({"a":{"dtype":"U8","shape":[4611686018427387904,2,0],"data_offsets":[0,0]}})", ""));
    CHECK(SafetensorsFile(path).tensors()[0].elements() == 0);
}
