#include "llmc/run/log.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kernels/device/error.h"

namespace llmc {

Log::Log(const std::string& output_dir) {
    if (output_dir.empty()) return;
    std::error_code error;
    std::filesystem::create_directories(output_dir, error);
    if (error)
        fail("--output-dir", '"' + output_dir + '"', "a folder that can be made: " + error.message(),
             "choose another folder");
    path_ = (std::filesystem::path(output_dir) / kFileName).string();
    if (std::filesystem::exists(path_))
        fail("--output-dir", '"' + output_dir + '"', "a folder without another run's " + std::string(kFileName),
             "choose another folder, or move that run away");
    file_.reset(std::fopen(path_.c_str(), "wx"));
    if (!file_)
        fail("--output-dir", '"' + output_dir + '"',
             "a folder that can be written to: " + std::string(std::strerror(errno)), "choose another folder");
}

void Log::write(const nlohmann::ordered_json& event) {
    if (!file_) return;
    // Text from a model may be no valid UTF-8; what is not is replaced.
    const std::string line = event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
    if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0)
        fail("writing " + path_, std::strerror(errno), "a line to be written", "make room on the disk", Blame::runtime);
}

}  // namespace llmc
