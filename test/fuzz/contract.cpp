// contract.cpp - what every parser must do with any bytes, the list of targets, and their temporary files
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <typeinfo>

#include "kernels/base/error.h"
#include "test/fuzz/target.h"

namespace fuzz {
namespace {

// Room for a path, two excerpts of 80 characters, and text.
constexpr std::size_t kLongestMessage = 1000;

struct Scratch {
    std::filesystem::path folder;
    std::map<std::string, int> files;  // kept open: two system calls per input instead of four
    Scratch() {
        std::string name = std::filesystem::temp_directory_path() / "fuzz.XXXXXX";
        must(mkdtemp(name.data()), "a temporary folder");
        folder = name;
    }
    ~Scratch() {
        std::error_code none;
        std::filesystem::remove_all(folder, none);
    }
};
Scratch& scratch() {
    static Scratch scratch;
    return scratch;
}

// Length of the UTF-8 character at the start of `text`; 0: invalid.
std::size_t utf8_length(std::string_view text) {
    const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    if (byte(0) < 0x80) return 1;
    const std::size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
    unsigned code = byte(0) & (0x7fu >> length);
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
        code = code << 6 | (byte(i) & 0x3f);
    }
    const unsigned least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    return byte(0) < 0xc0 || code < least || code > 0x10ffff || surrogate ? 0 : length;
}

}  // namespace

std::vector<NamedTarget>& targets() {
    static std::vector<NamedTarget> all;
    return all;
}

Target::Target(std::string_view name, Parse parse) { targets().push_back({name, parse}); }

void must(bool holds, std::string_view what) {
    if (holds) return;
    std::cerr << "finding: not " << what << std::endl;
    throw Finding{std::string(what)};
}

void must_be_plain(std::string_view text) {
    const std::string quoted = '"' + std::string(text) + '"';
    for (std::size_t length; !text.empty(); text.remove_prefix(length)) {
        length = utf8_length(text);
        must(length > 0, "UTF-8: " + quoted);
        const auto first = static_cast<unsigned char>(text[0]);
        must(first >= ' ' && first != 127, "without control characters: " + quoted);
    }
}

const std::filesystem::path& scratch_folder() { return scratch().folder; }

std::filesystem::path file_with(const std::string& name, std::string_view bytes) {
    const std::filesystem::path path = scratch_folder() / name;
    auto [file, is_new] = scratch().files.emplace(name, -1);
    if (is_new) file->second = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    must(ftruncate(file->second, 0) == 0 &&
             pwrite(file->second, bytes.data(), bytes.size(), 0) == ssize_t(bytes.size()), "a file to parse");
    return path;
}

std::string with_header_of(std::size_t meant, std::string_view bytes) {
    constexpr std::size_t kHeaderBytes = 1024;
    if (bytes.size() < meant || bytes.size() >= kHeaderBytes) return std::string(bytes);
    std::string file(bytes.substr(0, meant));
    file.resize(kHeaderBytes);
    return file.append(bytes.substr(meant));
}

std::string safetensors_of(std::string_view text) {
    const std::size_t header = std::min(text.find('\n'), text.size());
    std::string file;
    for (int i = 0; i < 8; ++i) file += char(header >> 8 * i & 0xff);
    file.append(text.substr(0, header));
    if (header < text.size()) file.append(text.substr(header + 1));
    return file;
}

void check(Parse parse, std::string_view bytes) {
    try {
        parse(bytes);
    } catch (const base::Error& error) {
        const std::string message = error.what();
        must(!message.empty() && message.size() <= kLongestMessage,
             "a message of 1 to 1000 bytes: \"" + message + '"');
        must_be_plain(message);
    } catch (const std::exception& error) {
        must(false, std::string("an Error of the project, not ") + typeid(error).name() + ": " + error.what());
    }
}

}  // namespace fuzz
