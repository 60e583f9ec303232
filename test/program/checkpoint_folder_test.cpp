// checkpoint_folder_test.cpp - the real program with checkpoints that it cannot read, that cannot be resumed, or whose
// model has changed
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "test/support/run_support.h"

using namespace test;

namespace {

// A library that makes one call fail for files and folders whose path ends with REFUSED_PATH.
constexpr const char* kRefusing = R"(
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <string_view>
static int unread = -1;
template <class Call> static Call next(Call, const char* name) { return Call(dlsym(RTLD_NEXT, name)); }
static bool refuses(std::string_view call, std::string_view path) {
    const char *const end = std::getenv("REFUSED_PATH"), *const of = std::getenv("REFUSED_CALL");
    if (!end || call != of || !path.ends_with(end)) return false;
    errno = std::atoi(std::getenv("REFUSED_ERRNO"));
    return true;
}
extern "C" int open(const char* path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    const int mode = flags & O_CREAT ? va_arg(more, int) : 0;
    va_end(more);
    if (refuses("open", path)) return -1;
    const int file = next(open, "open")(path, flags, mode);
    if (refuses("pread", path)) unread = file;
    return file;
}
extern "C" ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
    if (file >= 0 && file == unread) return errno = std::atoi(std::getenv("REFUSED_ERRNO")), -1;
    return next(pread, "pread")(file, to, bytes, offset);
}
extern "C" int close(int file) {
    if (file == unread) unread = -1;
    return next(close, "close")(file);
}
// libstdc++ reads folders with one of these.
extern "C" int openat(int folder, const char* path, int flags, ...) {
    return refuses("open", path) ? -1 : next(openat, "openat")(folder, path, flags, 0600);
}
extern "C" DIR* opendir(const char* path) {
    return refuses("open", path) ? nullptr : next(opendir, "opendir")(path);
}
)";

// A run of 4 steps with a checkpoint after 2 and 4, and a library that refuses calls.
class RefusedFolder : public TrainingFolder {
public:
    RefusedFolder() {
        library(kRefusing);
        run(resumed("4")).exits(0);
    }
    Texts resumed(const std::string& steps) const {
        return flags({"-x", steps, "-n", "2", "-v", "0", "-y", "auto", "-o", path("out")});
    }
    Result refuse(const std::string& call, const std::string& end, int fault, const Texts& words) const {
        return command(Texts{"env", "LD_PRELOAD=" + path("library.so"), "REFUSED_CALL=" + call, "REFUSED_PATH=" + end,
                             "REFUSED_ERRNO=" + std::to_string(fault), program("train_gpt2")} + words);
    }
};

}  // namespace

TEST_CASE("a checkpoint that cannot be read now ends the run with one line, and nothing is renamed",
          "[run][resume]") {
    const RefusedFolder folder;
    const auto before = names_in(folder.path("out"));
    const auto check = [&](const std::string& call, const std::string& end, int fault) {
        const Texts no_validation{"-v", "0", "-x", "6"},
            branch = folder.flags(no_validation + Texts{"-y", folder.path("out/step_00000004"), "-o",
                                                        folder.path("branch")}),
            init = folder.flags(no_validation + Texts{"-o", folder.path("new"), "-e", folder.path("out")});
        std::vector<Texts> commands{folder.resumed("6")};
        if (end != "/out") commands.push_back(branch);
        if (end == "/out" || end.ends_with("/manifest.json") || end.ends_with("/config.json") ||
            end.ends_with("/model.safetensors"))
            commands.push_back(init);
        for (const auto& words : commands) {
            CAPTURE(call, end, std::strerror(fault), words);
            const std::string output = folder.refuse(call, end, fault, words).exits(2);
            CHECK_THAT(output, Contains("error: ") && Contains(end + " is unreadable (") &&
                               Contains(std::strerror(fault)) && !Contains("note: --resume"));
            CHECK_THAT(output, !Contains("step 5/"));
            CHECK(names_in(folder.path("out")) == before);
        }
    };
    for (const auto& entry : fs::directory_iterator(folder.path("out/step_00000004")))
        check("open", "step_00000004/" + entry.path().filename().string(), EACCES);
    for (const int fault : {EIO, ENOMEM, ENFILE, EMFILE, ESTALE}) {
        check("open", "step_00000004/model.safetensors", fault);
        check("open", "/out", fault);
    }
    check("open", "step_00000004/manifest.json", EIO);
    check("pread", "step_00000004/model.safetensors", EIO);
    CHECK_THAT(folder.run(folder.resumed("6")).exits(0), Contains("resuming after step 4/6"));
}

TEST_CASE("--keep-checkpoints counts only checkpoints that can be resumed", "[run][resume]") {
    const TrainingFolder folder;
    const auto run = [&](const char* steps) {
        folder.train({"-x", steps, "-n", "2", "-v", "0", "-y", "auto", "-o", folder.path("out"), "--keep-checkpoints",
                      "3"});
    };
    const auto step = [&](const char* number) { return "step_000000" + std::string(number); };
    const auto kept = [&] {
        auto names = names_in(folder.path("out"));
        for (const char* const name : {"log.jsonl", "options.json"}) names.erase(name);
        return names;
    };
    for (const char* const steps : {"2", "4", "6"}) run(steps);
    fs::remove(folder.path("out/" + step("04") + "/manifest.json"));  // for example a copy that was not finished
    run("8");
    fs::remove(folder.path("out/" + step("06") + "/optimizer-00000-of-00001.safetensors"));
    run("10");
    CHECK(kept() == std::set{step("02"), step("04"), step("06"), step("08"), step("10")});
    run("12");
    CHECK(kept() == std::set{step("04"), step("08"), step("10"), step("12")});
}

TEST_CASE("the checkpoint of the lowest validation loss is kept and named best; --stop-after ends the run",
          "[run][resume][ranks][mpi]") {
    const int ranks = GENERATE(1, 2);
    if (ranks > 1) skip_without_mpi();
    const TrainingFolder folder;
    const auto best = [&] { return fs::read_symlink(folder.path("out/best")).string(); };
    const auto run = [&](const Texts& more) {
        return folder.run_on(ranks, folder.flags({"-b", "2", "-z", "2", "-v", "2", "--val-tokens", "256", "--tune=off",
                                                  "--keep-best", "--keep-checkpoints", "1", "-y", "auto", "-o",
                                                  folder.path("out")}) + more).exits(0);
    };
    const Texts again{"-o", folder.path("out"), "-y", "auto"};
    run({"--max-minutes", "1e-12"});
    CHECK(best() == "step_00000000");
    run({"--max-minutes", "0", "-x", "5", "-u", "0"});
    CHECK(best() == "step_00000005");
    fs::remove(folder.path("out/best"));  // as if it had been killed before it made the link
    const std::string output = run({"-x", "30", "--lr", "1", "--stop-after", "3"});
    CHECK_THAT(output, Contains("done: no lower validation loss (--stop-after), 5 steps in ") &&
                           Contains(" after step 5/30, " + folder.path("out/best") + "\n") &&
                           Contains(" -y auto --stop-after 0\n"));
    CHECK(folder.log("out", "end").back()["reason"] == "no lower validation loss (--stop-after)");
    CHECK(names_in(folder.path("out")) == std::set<std::string>{"best", "log.jsonl", "options.json", "step_00000005",
                                                                "step_00000010"});
    CHECK(best() == "step_00000005");
    CHECK_THAT(folder.run_on(ranks, again).exits(0), Contains(", 0 steps in "));
    CHECK_THAT(folder.run_on(ranks, again + Texts{"--stop-after", "4"}).exits(0), Contains(", 2 steps in "));
    const auto generate = [&](const char* model) {
        const Texts words{"-e", folder.path(model), "--prompt", "ab", "-n", "1", "--threads", "1"};
        return folder.run(words, "generate").exits(0);
    };
    CHECK(generate("out/best").find("lowest") == std::string::npos);
    CHECK_THAT(generate("out"), Contains("note: step_00000005 has the lowest validation loss: pass " +
                                         folder.path("out/best")));
    const double lowest = std::ranges::min(numbers(folder.log("out", "val"), "loss"));
    folder.train({"-e", folder.path("out/best"), "--eval-only", "--val-tokens", "256", "--tune=off", "-b", "2", "-o",
                  folder.path("again")});
    CHECK(std::fabs(folder.log("again", "val")[0]["loss"].get<double>() - lowest) < 1e-6);
}

TEST_CASE("a model with flipped bits is not used: -e, dev/generate and dev/export_llmc", "[run]") {
    const TrainingFolder folder;
    folder.train({"-x", "2", "-n", "1", "-v", "0", "-o", folder.path("out")});
    const std::string model = folder.path("out/step_00000002"), file = model + "/model.safetensors";
    edit(file, [](std::string& bytes) { bytes[bytes.size() - 2] ^= 1; });
    for (const bool of_run : {false, true}) {
        const std::string from = of_run ? folder.path("out") : model;
        for (const auto& [name, words] : std::map<std::string, Texts>{
                 {"train_gpt2", folder.flags({"-x", "1", "-v", "0", "-e", from})},
                 {"generate", {"-e", from, "--prompt", "ab", "-n", "1", "--threads", "1"}},
                 {"export_llmc", {"-e", from, "-o", folder.path(of_run ? "run.bin" : "step.bin")}}}) {
            const Result result = folder.run(words, name);
            CAPTURE(name, words, result.output);
            CHECK(result.exit_code == (of_run ? 0 : 2));
            CHECK_THAT(result.output, Contains("the checksum of " + file + " is ") &&
                                          Contains(of_run ? "note: skips " : "remove manifest.json"));
        }
    }
}
