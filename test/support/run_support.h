// run_support.h - runs the real program from its command line, in a folder with training data
#pragma once
#include <algorithm>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sstream>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "kernels/device/device.h"
#include "llmc/base/json_text.h"
#include "llmc/base/option.h"
#include "llmc/comm/communicator.h"
#include "llmc/run/options/run_settings.h"
#include "llmc/weights/manifest.h"
#include "llmc/weights/step_folder.h"
#include "test/support/shard_support.h"

namespace test {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

inline Texts operator+(Texts all, const Texts& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

// Exit code and output of a program, and how long it took.
struct Result {
    int exit_code;
    std::string output;
    double seconds = 0;
    int count(const std::string& text) const {
        int times = 0;
        for (auto at = output.find(text); at != std::string::npos; at = output.find(text, at + 1)) ++times;
        return times;
    }
    int lines() const { return count("\n"); }
    // Requires this exit code. Returns the output.
    const std::string& exits(int code) const {
        CAPTURE(output);
        REQUIRE(exit_code == code);
        return output;
    }
};

// Skips the test case if ranks cannot be processes; otherwise sets the environment for mpirun.
inline void skip_without_mpi() {
    if (!llmc::why_no_mpi().empty()) skip("this build lacks " + llmc::why_no_mpi());
    if (std::system("command -v mpirun >/dev/null") != 0) skip("no mpirun");
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMP_WAIT_POLICY", "passive", 1);  // ranks share cores
}

// Starts `ranks` processes of the program that follows. Skips the test case without MPI, so not first in a CHECK.
inline Texts launcher(int ranks) {
    skip_without_mpi();
    return {"mpirun", "--bind-to", "none", "--oversubscribe", "-np", std::to_string(ranks)};
}

// Whether the condition becomes true within the time.
template <class Condition>
bool comes_true(Condition&& condition, std::chrono::milliseconds within = std::chrono::seconds(30)) {
    const auto latest = std::chrono::steady_clock::now() + within;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > latest) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
}

inline Texts lines_of(const std::string& text) {
    Texts lines;
    std::istringstream all(text);
    for (std::string line; std::getline(all, line);) lines.push_back(line);
    return lines;
}

// The programs are in the folder of this one.
inline std::string program(const std::string& name) {
    return (fs::read_symlink("/proc/self/exe").parent_path() / name).string();
}

// Flags of train_gpt2, without those that a later one replaces, so that a test can replace flags that it has from
// elsewhere.
inline Texts last_of_each(const Texts& words) {
    llmc::RunSettings options;
    std::map<std::string, std::string> known;
    for (const llmc::Option& option : llmc::option_table(options).options) {
        const std::string name = "--" + option.name(), flag = option.flag;
        known[name] = name;
        if (flag[1] == ',') known[std::string("-") + flag[0]] = name;
    }
    Texts flags{""};  // words before the first flag
    std::map<std::string, Texts> with_values;
    for (const std::string& word : words) {
        if (const auto flag = known.find(word.substr(0, word.find('='))); flag != known.end()) {
            flags.push_back(flag->second);
            with_values[flag->second].clear();
        }
        with_values[flags.back()].push_back(word);
    }
    Texts kept;
    for (const std::string& flag : flags) kept = kept + std::exchange(with_values[flag], {});
    return kept;
}

// A running program; its output goes to a file.
class Process {
public:
    Process(std::vector<std::string> arguments, const fs::path& output) : output_(output) {
        std::vector<char*> argv;
        for (std::string& argument : arguments) argv.push_back(argument.data());
        argv.push_back(nullptr);
        process_ = fork();
        if (process_ == 0) {
            // A shell in the background, or nohup, may have set them to be ignored for this test.
            for (const int ignored : {SIGINT, SIGHUP}) ::signal(ignored, SIG_DFL);
            const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
            dup2(file, STDOUT_FILENO);
            dup2(file, STDERR_FILENO);
            execvp(argv[0], argv.data());
            _exit(127);
        }
    }
    ~Process() {
        if (process_ > 0 && !ended_) {
            kill(process_, SIGKILL);
            waitpid(process_, nullptr, 0);
        }
    }
    void signal(int number) const { kill(process_, number); }
    pid_t id() const { return process_; }
    // Without the NUL bytes that end Open MPI 5's own messages, because a line of the program may follow one.
    std::string output() const {
        std::string output = fs::exists(output_) ? read_bytes(output_) : "";
        std::erase(output, '\0');
        return output;
    }
    // Whether the output has the text within the time.
    bool prints(const std::string& text, std::chrono::milliseconds within = std::chrono::seconds(30)) const {
        return comes_true([&] { return output().find(text) != std::string::npos; }, within);
    }
    bool ended() const {  // whether it has ended; exit_code() stays available
        siginfo_t info{};
        return waitid(P_PID, id_t(process_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
    }
    // Waits at most `at_most`, then kills the program, so that one that never ends fails only its own test case.
    // Negative: killed by that signal.
    int exit_code(std::chrono::milliseconds at_most = std::chrono::minutes(5)) {
        const int handle = int(syscall(SYS_pidfd_open, process_, 0));
        pollfd end{.fd = handle, .events = POLLIN, .revents = 0};
        if (handle >= 0 && poll(&end, 1, int(at_most.count())) == 0) signal(SIGKILL);
        if (handle >= 0) close(handle);
        int status = 0;
        waitpid(process_, &status, 0);
        ended_ = true;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    Result result(std::chrono::milliseconds at_most = std::chrono::minutes(5)) {
        const int code = exit_code(at_most);
        return {code, output()};
    }

private:
    fs::path output_;
    pid_t process_ = -1;
    bool ended_ = false;
};

inline std::vector<double> numbers(const std::vector<nlohmann::json>& events, const char* key) {
    std::vector<double> values;
    for (const auto& event : events) values.push_back(event[key].get<double>());
    return values;
}

// Values of the flags that the run chooses otherwise (run/start/choice.h).
inline const Texts kFixed{"-d", "0", "-k", "cosine", "-u", "0", "-q", "0.1", "-c", "0.1", "--beta2", "0.95",
                          "--optimizer", "adamw", "--dtype", "fp32", "-r", "none", "-v", "250", "--val-tokens",
                          "10485760", "--keep-best=off", "--stop-after", "0", "--keep-checkpoints", "0",
                          "--shuffle=off", "--document-mask=off", "--log-every", "1"};

// A folder with shards of a language that a small model learns quickly, and the flags to train on them.
class TrainingFolder {
public:
    TrainingFolder() {
        std::mt19937 engine(1);
        std::vector<std::uint16_t> ids{256};
        for (int i = 0; i < 6000; ++i)
            ids.push_back(ids.back() == 256 || engine() % 8 == 0 ? std::uint16_t('a' + engine() % 20)
                                                                 : std::uint16_t(ids.back() + 1));
        ShardBytes(ids, 257, 256).write(path("train_0.bin"));
        ids.resize(700);
        ShardBytes(ids, 257, 256).write(path("val_0.bin"));
    }
    std::string path(const std::string& name = "") const { return (folder_ / name).string(); }
    Texts flags(const Texts& more = {}) const {
        // Tests start up to four ranks, which share GPUs if the machine has fewer.
        const bool shares = device::count() > 0 && device::count() < 4;
        return last_of_each((resumes(more) ? Texts() : kFixed) +
                            Texts{"-i", path("train_*.bin"), "-j", path("val_*.bin"), "-e", "custom:l=2,h=2,c=32,t=32",
                                  "-b", "4", "-t", "16", "--lr", "1e-2", "--threads", "1"} +
                            (shares ? Texts{"--comm", "mpi"} : Texts()) + more);
    }
    Process start(const Texts& arguments, const std::string& name = "train_gpt2") const {
        return Process(of(name, arguments), path("output.txt"));
    }
    // Any command.
    Result command(const Texts& words) const { return Process(words, path("output.txt")).result(); }
    Result run(const Texts& arguments, const std::string& name = "train_gpt2") const {
        return command(of(name, arguments));
    }
    // Under mpirun, whose exit code it is.
    Result run_ranks(int ranks, const Texts& arguments) const {
        return command(launcher(ranks) + of("train_gpt2", arguments));
    }
    Result run_on(int ranks, const Texts& arguments) const {
        return ranks > 1 ? run_ranks(ranks, arguments) : run(arguments);
    }
    // Runs flags() and `more`, which must succeed or be refused. Returns the output.
    std::string train(const Texts& more) const { return run(flags(more)).exits(0); }
    std::string refuse(const Texts& more) const { return run(flags(more)).exits(2); }
    // The bash script `name` in this folder.
    void script(const std::string& name, const std::string& text) const {
        write_bytes(path(name), "#!/bin/bash\n" + text);
        fs::permissions(path(name), fs::perms::owner_all);
    }
    // A library of these sources, for LD_PRELOAD. Returns its path.
    std::string library(const std::string& source, const std::string& compiler = "c++") const {
        write_bytes(path("library.cpp"), source);
        const std::string file = path("library.so");
        REQUIRE(std::system((compiler + " -std=c++20 -shared -fPIC -ldl -o " + file + ' ' +
                             path("library.cpp")).c_str()) == 0);
        return file;
    }
    fs::path step(const std::string& out, std::int64_t number) const { return llmc::step_folder(path(out), number); }
    // The steps of the checkpoints.
    std::vector<std::int64_t> saved_steps(const std::string& out) const {
        std::vector<std::int64_t> steps;
        for (const auto& [step, folder] : llmc::step_folders(path(out))) steps.push_back(step);
        return steps;
    }
    // The folder `to` of a run that has only this checkpoint, of `from`.
    void copy_checkpoint(const std::string& from, std::int64_t number, const std::string& to) const {
        fs::remove_all(path(to));
        fs::create_directories(path(to));
        fs::copy(step(from, number), step(to, number));
    }
    std::string model(const std::string& out, std::int64_t step_number) const {
        return read_bytes(step(out, step_number) / "model.safetensors");
    }
    // Skips a last line that the run is still writing.
    std::vector<nlohmann::json> log(const std::string& out, const std::string& event) const {
        std::vector<nlohmann::json> events;
        const std::string text = read_bytes(path(out) + "/log.jsonl");
        for (const std::string& line : lines_of(text.substr(0, text.rfind('\n') + 1)))
            if (auto json = llmc::parse_json(line); json["event"] == event) events.push_back(json);
        return events;
    }
    // Whether the log of the run "out" gets such an event in time.
    bool logs(const std::string& event) const {
        return comes_true([&] { return fs::exists(path("out/log.jsonl")) && !log("out", event).empty(); });
    }
    std::vector<double> losses(const std::string& out) const { return numbers(log(out, "step"), "loss"); }

private:
    static bool has_length(const Texts& flags) {
        for (const char* const flag : {"-x", "--max-steps", "--max-tokens", "--epochs", "--max-minutes"})
            if (const auto found = std::ranges::find(flags, flag); found != flags.end() && *std::next(found) != "0")
                return true;
        return false;
    }
    // Whether the run takes what these flags do not say from the run before.
    static bool resumes(const Texts& flags) {
        const auto value_of = [&](const Texts& names) {
            const auto found = std::find_first_of(flags.rbegin(), flags.rend(), names.begin(), names.end());
            return found == flags.rend() || found == flags.rbegin() ? std::string() : *std::prev(found);
        };
        const std::string from = value_of({"-y", "--resume"});
        return !from.empty() && from != "never" &&
               (from != "auto" || fs::exists(fs::path(value_of({"-o", "--output-dir"})) / llmc::kOptionsName));
    }
    static Texts of(const std::string& name, const Texts& arguments) {
        if (name != "train_gpt2") return Texts{program(name)} + arguments;
        const Texts flags = last_of_each(arguments);
        const bool is_fixed = std::ranges::count(flags, "--shuffle=off") > 0;
        return Texts{program(name)} + flags +
               (is_fixed && !resumes(flags) && !has_length(flags) ? Texts{"--epochs", "1"} : Texts());
    }

    ScratchFolder folder_;
};

// Twelve steps of 192 positions, for 1, 2, 3 or 4 ranks; a checkpoint after 5 and 10.
inline Texts twelve_steps(const TrainingFolder& folder, const std::string& out) {
    return folder.flags({"-e", "custom:l=2,h=2,c=32,t=16", "-b", "1", "-d", "192", "-x", "12", "-v", "4", "-n", "5",
                         "--val-tokens", "64", "--eps", "1e-3", "--tune=off", "-o", folder.path(out)});
}

// An event of the log, except for what depends on the time.
inline nlohmann::json without_times(nlohmann::json event) {
    for (const char* const key : {"ms", "seconds", "tokens_per_s", "valid_tokens_per_s", "mfu", "comm_ms",
                                  "comm_hidden", "comm_wait_ms", "tasks_ms", "data_ms", "forward_backward_ms",
                                  "optimizer_ms", "enqueue_ms", "cpu_share", "time"})
        event.erase(key);
    return event;
}

// The processes that have these texts in their command line and their environment.
inline std::vector<pid_t> processes_with(const Texts& words, const std::string& in_environment = "") {
    const auto holds = [](const fs::path& file, const std::string& text) {
        std::ostringstream contents;  // ends where reading fails, because the process has just ended
        contents << std::ifstream(file, std::ios::binary).rdbuf();
        return contents.str().find(text) != std::string::npos;
    };
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc"))
        if (const int process = std::atoi(entry.path().filename().c_str());
            process > 0 && holds(entry.path() / "environ", in_environment) &&
            std::ranges::all_of(words, [&](const std::string& word) { return holds(entry.path() / "cmdline", word); }))
            found.push_back(process);
    return found;
}

// Changes the bytes of a file.
template <class Change> void edit(const fs::path& file, Change&& change) {
    std::string bytes = read_bytes(file);
    change(bytes);
    write_bytes(file, bytes);
}

// Updates the checksums after a test has changed a file of a checkpoint.
inline void make_checksums_right(const fs::path& checkpoint) {
    llmc::Manifest manifest;
    for (const auto& entry : fs::directory_iterator(checkpoint))
        if (entry.path().filename() != llmc::kManifestName)
            manifest[entry.path().filename()] = llmc::fingerprint_of_file(entry.path());
    llmc::write_manifest(checkpoint, manifest);
}

}  // namespace test
