// repeated_flags_test.cpp - flags that take several values keep all in order; every other flag is given once
#include <nlohmann/json.hpp>

#include "llmc/base/option.h"
#include "test/support/options_support.h"

using namespace llmc;
using test::read, test::refusal;
using Texts = std::vector<std::string>;

TEST_CASE("several -i and -j keep their order on every way to the options of a run", "[options]") {
    const Texts want{"b,{1,2}.bin", "a.bin", "a b.bin"};
    for (const Texts& flags : {Texts{"-i", want[0], "--train-data", want[1], "-i" + want[2]},
                               Texts{"--shuffle", "-i", want[0], want[1], want[2], "-x", "1"},
                               Texts{"-i=" + want[0], "--train-data=" + want[1], want[2], "-i", ""}})
        CHECK(read(flags).settings.data.train == want);
    const CommandLine line = read({"-i", want[0], want[1], want[2], "-j", "v.bin", "-j", "w.bin"});
    CHECK(line.settings.data.val == Texts{"v.bin", "w.bin"});
    // as flags, in a file of options, in the log and in a checkpoint
    const RunSettings& o = line.settings;
    CHECK(flags_of(o, true) == Texts{"--train-data='b,{1,2}.bin'", "--train-data=a.bin", "--train-data='a b.bin'",
                                     "--val-data=v.bin", "--val-data=w.bin"});
    const test::ScratchFolder folder;
    const std::string file = test::write_bytes(folder / "a.json", config_text(o));
    CHECK(to_json(read({"--config", file}).settings) == to_json(o));
    CHECK(read({"--config", file, "-i", "c.bin"}).settings.data.train == Texts{"c.bin"});
    CHECK(continued(read({"-o", "o", "-y", "auto"}), to_json(o), "f").settings.data.train == want);
    CHECK(continued(read({"-o", "o", "-y", "auto", "-i", "c", "d"}), to_json(o), "f").settings.data.train ==
          Texts{"c", "d"});
    // one and none are text, as in older versions
    CHECK(to_json(read({"-i", "a.bin"}).settings)["train-data"] == "a.bin");
    CHECK(to_json(o)["train-data"] == want);
    CHECK(to_json(RunSettings())["val-data"] == "");
    test::write_bytes(folder / "a.json", R"({"train-data": "x", "lr": ["1", "2"]})");
    CHECK(refusal({"--config", file}) ==
          file + ": lr is 2 values; expected one value; only train-data and val-data take lists");
    CHECK_THAT(refusal({"-i", "a.bin", "--shuffle", "b.bin"}), test::StartsWith("the argument \"b.bin\" is not"));
}

TEST_CASE("every flag that takes one value is refused if it is given twice", "[options]") {
    CHECK(refusal({"-i", "x", "-l", "1e-3", "--lr=2e-3"}) ==
          "--lr is given more than once: \"1e-3\", \"2e-3\"; expected it once; remove the others");
    CHECK_THAT(refusal({"-i", "x", "-fl", "1", "-l2"}), test::StartsWith("--lr is given more than once"));
    CHECK_THAT(refusal({"--help", "-h"}), test::StartsWith("--help is given more than once"));
    CHECK_THAT(refusal({"--config", "a", "--config", "b"}), test::StartsWith("--config is given more than once"));
    RunSettings defaults;
    for (const Option& option : option_table(defaults).options) {
        if (option.is_list()) continue;
        const std::string flag = "--" + option.name(), one = flag + (option.is_switch() ? "" : "=1");
        CHECK_THAT(refusal({"-i", "x", one, flag + "=1"}), test::StartsWith(flag + " is given more than once: "));
    }
}
