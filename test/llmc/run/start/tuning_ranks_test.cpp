// tuning_ranks_test.cpp - autotuning: the file of results, which ranks time, and what the others use
#include "llmc/model/tuning.h"

#include <nlohmann/json.hpp>

#include "test/support/agreement_support.h"
#include "test/support/model_support.h"

using namespace llmc;
using namespace test;
using kernels::TunedAlgorithm;
using kernels::TunedTable;

namespace {

const TunedAlgorithm kFirst{"first", "1 ms", 1e-3}, kOther{"other \xc3\xbc", "2 ms", 2e-3};

AlgorithmSettings options_with(const std::filesystem::path& file, Tune tune = Tune::automatic) {
    return {.tune = tune, .file = file.string()};
}

// The actions of a run of ranks with these devices.
struct Tuned {
    std::vector<int> timed;  // how often each rank timed
    std::vector<std::string> taken, said, heard;
    std::vector<std::vector<std::string>> notes;
};
Tuned tune(const AlgorithmSettings& settings, const std::vector<std::string>& devices, bool times = true) {
    Tuned tuned{std::vector<int>(devices.size()), {}, {}, {}, std::vector<std::vector<std::string>>(devices.size())};
    tuned.taken.resize(devices.size());
    tuned.said.resize(devices.size());
    std::vector<int> ready(devices.size());  // Catch2 assertions are not thread-safe
    tuned.heard = complaints(int(devices.size()), [&](Communicator& ranks) {
        const auto rank = std::size_t(ranks.rank());
        Context context = make_context(ranks);
        context.device.name = devices[rank];
        context.tuned = std::make_unique<kernels::TunedAlgorithms>();
        Tuning tuning(settings, times, context);
        const auto ask = [&] {
            ++tuned.timed[rank];
            if (context.tuned->find("lib 1", "sum")) return;
            if (!context.tuned->timing) throw Error("asked without leave to time");
            if (devices[rank] == "broken") throw Error("a fault of the device", Blame::runtime);
            context.tuned->keep("lib 1", "sum", {"by rank " + std::to_string(rank), "", 1});
        };
        tuning.choose(ask);
        tuning.save();
        const TunedAlgorithm* const found = context.tuned->find("lib 1", "sum");
        tuned.taken[rank] = found ? found->taken : "nothing";
        tuned.said[rank] = tuning.describe();
        tuned.notes[rank] = tuning.notes();
        ready[rank] = !context.tuned->timing && context.tuned->cache_bytes == context.device.cache;
    });
    for (std::size_t rank = 0; rank < devices.size(); ++rank)
        CHECK((ready[rank] || tuned.heard[rank] != "accepted"));
    return tuned;
}

using Sentences = std::vector<std::string>;

}  // namespace

TEST_CASE("results read back from the file as written, together with those that others added", "[tuning]") {
    const ScratchFolder scratch;
    const std::string file = (scratch / "deep" / "choices.json").string();
    CHECK(read_tune_file(file).tuned.empty());
    CHECK(read_tune_file(file).fault.empty());
    add_to_tune_file(file, {{"GPU A", {{"lib 1", {{"sum", kFirst}}}}}});
    add_to_tune_file(file,
                     {{"GPU A", {{"lib 1", {{"sum", kOther}, {"product", kFirst}}}, {"lib 2", {{"sum", kFirst}}}}},
                      {"GPU B", {{"lib 1", {{"sum", kFirst}}}}}});
    const TuneFile read = read_tune_file(file);
    CHECK(read.fault.empty());
    CHECK(read.tuned.size() == 2);
    CHECK(read.tuned.at("GPU A") ==
          TunedTable{{"lib 1", {{"sum", kOther}, {"product", kFirst}}}, {"lib 2", {{"sum", kFirst}}}});
    CHECK(read.tuned.at("GPU B") == TunedTable{{"lib 1", {{"sum", kFirst}}}});
}

TEST_CASE("if the file is a link, its target is written", "[tuning]") {
    const ScratchFolder scratch;
    const std::string file = (scratch / "choices.json").string(), link = (scratch / "link").string();
    add_to_tune_file(file, {{"GPU A", {{"lib 1", {{"sum", kFirst}}}}}});
    std::filesystem::create_symlink("choices.json", link);
    add_to_tune_file(link, {{"GPU B", {{"lib 1", {{"sum", kFirst}}}}}});
    CHECK(std::filesystem::is_symlink(link));
    CHECK(read_tune_file(file).tuned.size() == 2);
}

// {"a":{"a": ... 1 ...}}
std::string nested(int levels) {
    std::string text;
    for (int i = 0; i < levels; ++i) text += "{\"a\":";
    return text + '1' + std::string(std::size_t(levels), '}');
}

TEST_CASE("a file in another format is not read in parts, and not overwritten", "[tuning]") {
    const ScratchFolder scratch;
    const std::string file = (scratch / "choices.json").string();
    add_to_tune_file(file, {{"GPU A", {{"lib 1", {{"sum", kFirst}}}}}});
    const std::string whole = read_bytes(file);
    const auto replaced = [&](const std::string& what, const std::string& by) {
        std::string text = whole;
        return text.replace(text.find(what), what.size(), by);
    };
    const auto [contents, fault] = GENERATE_COPY(table<std::string, std::string>({
        {"", "it is not valid JSON"},
        {whole.substr(0, whole.size() / 2), "it is not valid JSON"},
        {"[]", "its \"format\" is not \"train_gpt2 choices 1\""},
        {"{\"name\": \"another program's\"}", "its \"format\""},
        {replaced("choices 1", "choices 2"), "its \"format\""},
        {replaced("\"devices\"", "\"device\""), "its \"devices\" are not"},
        {replaced("\"taken\"", "\"token\""), "its \"devices\" are not"},
        {replaced("0.001", "\"0.001\""), "its \"devices\" are not"},
        {replaced("\"lib 1\"", "\"lib 0\": 3, \"lib 1\""), "its \"devices\" are not"},
        {replaced("0.001", "-0.001"), "its \"devices\" are not"},
        {replaced("\"why\": \"", "\"why\": \"\\u001b[31m"), "its \"devices\" are not"},
        {replaced("\"taken\": \"", "\"taken\": \"\\n"), "its \"devices\" are not"},
        {replaced("{\n", "{" + std::string(100'000, '[') + "\n"), "it is not valid JSON"},
        {replaced("\"devices\": ", "\"devices\": " + nested(100'000) + ", \"d\": "), "it is not valid JSON"},
    }));
    CAPTURE(contents);
    write_bytes(file, contents);
    CHECK(read_tune_file(file).tuned.empty());
    CHECK_THAT(read_tune_file(file).fault, StartsWith(fault));
    CHECK_THAT(error_of([&] { add_to_tune_file(file, {}); }), StartsWith(fault));
    CHECK(read_bytes(file) == contents);
    const Tuned tuned = tune(options_with(file), {"GPU A"});
    CHECK(tuned.taken == Sentences{"by rank 0"});
    REQUIRE(tuned.notes[0].size() == 1);
    CHECK_THAT(tuned.notes[0][0], test::StartsWith("autotuning results are neither read from " + file +
                                                    " nor stored there: " + fault));
    CHECK(tuned.said[0] == "autotuned algorithms: 1 timed now");
    CHECK(read_bytes(file) == contents);
}

TEST_CASE("the default file follows XDG_CACHE_HOME and HOME", "[tuning]") {
    const auto place = [](const char* cache, const char* home) {
        const std::string old_cache = getenv("XDG_CACHE_HOME"), old_home = getenv("HOME") ? getenv("HOME") : "";
        setenv("XDG_CACHE_HOME", cache, 1);
        setenv("HOME", home, 1);
        const std::string file = default_tune_file();
        setenv("XDG_CACHE_HOME", old_cache.c_str(), 1);
        setenv("HOME", old_home.c_str(), 1);
        return file;
    };
    CHECK(place("/cache", "/home/me") == "/cache/train_gpt2/choices.json");
    CHECK(place("", "/home/me") == "/home/me/.cache/train_gpt2/choices.json");
    CHECK(place("relative", "/home/me") == "/home/me/.cache/train_gpt2/choices.json");
    CHECK(place("", "") == "");
}

TEST_CASE("the first rank of each kind of device times, the others use its results, and the file has all", "[tuning]") {
    const ScratchFolder scratch;
    const auto file = scratch / "choices.json";
    const Sentences devices{"GPU A", "GPU A", "GPU B", "GPU B"};
    const Tuned first = tune(options_with(file), devices);
    CHECK(first.timed == std::vector<int>{1, 0, 1, 0});
    CHECK(first.taken == Sentences{"by rank 0", "by rank 0", "by rank 2", "by rank 2"});
    CHECK(first.said[0] == "autotuned algorithms: 1 timed now, stored in " + file.string());
    CHECK(read_tune_file(file).tuned.at("GPU A").at("lib 1").at("sum").taken == "by rank 0");
    CHECK(read_tune_file(file).tuned.at("GPU B").at("lib 1").at("sum").taken == "by rank 2");

    const Tuned second = tune(options_with(file), {"GPU B", "GPU A"});  // ranks changed places
    CHECK(second.taken == Sentences{"by rank 2", "by rank 0"});
    CHECK(second.said[0] == "autotuned algorithms: 1 from " + file.string());
    const Tuned again = tune(options_with(file, Tune::again), {"GPU B", "GPU B"});
    CHECK(again.timed == std::vector<int>{1, 0});
    CHECK(again.taken == Sentences{"by rank 0", "by rank 0"});
    CHECK(read_tune_file(file).tuned.at("GPU A").at("lib 1").at("sum").taken == "by rank 0");
    CHECK(read_tune_file(file).tuned.at("GPU B").at("lib 1").at("sum").taken == "by rank 0");

    const std::string before = read_bytes(file);
    const Tuned off = tune(options_with(file, Tune::off), devices);
    CHECK(off.timed == std::vector<int>{0, 0, 0, 0});
    CHECK(off.taken == Sentences(4, "nothing"));
    CHECK(tune(options_with(file, Tune::again), devices, /*times=*/false).taken == Sentences(4, "nothing"));
    CHECK(read_bytes(file) == before);
    for (const Tuned* tuned : {&first, &second, &again, &off})
        for (std::size_t rank = 0; rank < tuned->heard.size(); ++rank) {
            CHECK(tuned->heard[rank] == "accepted");
            CHECK(tuned->notes[rank].empty());
        }
}

TEST_CASE("an error while one rank times is thrown on all ranks", "[tuning]") {
    const ScratchFolder scratch;
    const auto file = scratch / "choices.json";
    CHECK(only(tune(options_with(file), {"GPU A", "broken", "broken"}).heard) ==
          on_this_host(1) + ": a fault of the device");
    CHECK(!std::filesystem::exists(file));
}

TEST_CASE("results that cannot be stored are a note, and the run uses them", "[tuning]") {
    const ScratchFolder scratch;
    const std::string file = write_bytes(scratch / "a file", "") / "choices.json";
    const Tuned tuned = tune(options_with(file), {"GPU A"});
    CHECK(tuned.taken == Sentences{"by rank 0"});
    REQUIRE(tuned.notes[0].size() == 1);
    CHECK_THAT(tuned.notes[0][0], StartsWith("the autotuning results of this run are not stored in " + file +
                                             ": cannot create " + (scratch / "a file").string()));
}
