// scratch_folder.h - a temporary folder for a test, removed at its end, reading and writing of files, and dropping the
// right to read any file
#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>

#include "kernels/base/error.h"
#include "test/support/catch.h"

namespace test {

class ScratchFolder {
public:
    ScratchFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "train_gpt2_XXXXXX").string();
        if (!mkdtemp(name.data())) throw std::runtime_error("cannot create scratch folder " + name);
        path_ = name;
    }
    ~ScratchFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }

private:
    std::filesystem::path path_;
};

inline std::string read_bytes(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in) throw std::runtime_error("cannot open " + file.string());
    return {std::istreambuf_iterator<char>(in), {}};
}
// Returns `file`.
inline std::filesystem::path write_bytes(const std::filesystem::path& file, const std::string& bytes) {
    std::ofstream out(file, std::ios::binary);
    out.write(bytes.data(), std::streamsize(bytes.size()));
    out.close();
    if (!out) throw std::runtime_error("cannot write " + file.string());
    return file;
}
// Of all files and folders in a folder.
inline std::set<std::string> names_in(const std::filesystem::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
    return names;
}

// The message of the Error that `work` throws; "accepted" if it throws none. `blame`: the Error's.
template <class Work> std::string error_of(Work&& work, std::optional<Blame> blame = {}) {
    try {
        work();
    } catch (const Error& error) {
        if (blame) CHECK(error.blame() == *blame);
        return error.what();
    }
    return "accepted";
}

// The error for a file of these bytes: one line that names the file and what was expected; "accepted" if there is none.
template <class Open>
std::string fault_of_file(const std::filesystem::path& file, const std::string& bytes, Open&& open) {
    write_bytes(file, bytes);
    const std::string said = error_of(open);
    if (said != "accepted") CHECK_THAT(said, Contains(file.string()) && Contains("expected ") && !Contains("\n"));
    return said;
}

// Drops root's rights during its lifetime, because root may read every file.
struct WithoutRoot {
    const bool root = geteuid() == 0;
    WithoutRoot() { if (root) REQUIRE(seteuid(65534) == 0); }
    ~WithoutRoot() { if (root && seteuid(0) != 0) std::abort(); }
};

// What `work` writes to the descriptor.
template <class Work> std::string written_to(int descriptor, Work&& work) {
    const ScratchFolder folder;
    const auto path = folder / "written";
    std::fflush(stdout);
    const int before = dup(descriptor), file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(file, descriptor);
    close(file);
    work();
    std::fflush(stdout);
    dup2(before, descriptor);
    close(before);
    return read_bytes(path);
}

}  // namespace test
