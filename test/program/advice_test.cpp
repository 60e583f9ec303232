// advice_test.cpp - the flags that an error or a note says to use are accepted when they are used
#include "test/support/pattern.h"
#include "test/support/run_support.h"

using namespace test;

namespace {

struct Advised {
    Texts flags;
    std::string says;             // a pattern, whose groups are flags or values
    Texts advice{"$1"};           // ways to follow it, each of words; $1 and $2 are the groups
};

Texts words_of(std::string text, const std::vector<std::string>& groups) {
    for (const std::string name : {"1", "2"})
        if (const auto at = text.find('$' + name); at != text.npos) text.replace(at, 2, groups[std::stoul(name)]);
    Texts words;
    std::istringstream all(text);
    for (std::string word; all >> word;) words.push_back(word.substr(0, word.find_last_not_of(',') + 1));
    return words;
}

}  // namespace

TEST_CASE("the flags that an error or a note names are accepted", "[run][advice]") {
    const TrainingFolder folder;
    const std::string nearest = "the nearest are ([0-9]+) and ([0-9]+)", use = "use (-[^,;]+)",
                      fewer = "use (-b auto) and at most (-d [0-9]+)", shorter = "use at most (-d [0-9]+)",
                      room = "divides a step is [0-9]+: set (-b [0-9]+ -d [0-9]+) for the same update",
                      batch_alone = "divides a step is [0-9]+: set (-b [0-9]+),";
    const Texts outer{"--outer-steps", "2"}, two{"--ranks", "2"},
        tight{"-e", "custom:l=8,h=4,c=128,t=16", "-d", "4096", "-b", "256", "--memory", "128M"};
    for (const Advised& row : std::vector<Advised>{
             {{"-d", "100"}, nearest, {"-d $1", "-d $2"}},
             {{"-d", "3"}, "the nearest is ([0-9]+)", {"-d $1"}},
             {{"-b", "128", "-d", "64k", "--memory", "1G"}, "or ([0-9]+), if k", {"-d $1"}},
             {{"--batch-schedule", "0:64,100:200"}, nearest,
              {"--batch-schedule 0:64,100:$1", "--batch-schedule 0:64,100:$2"}},
             {{"-b", "999"}, fewer, {"$1 $2"}},
             {tight + Texts{"-b", "512", "-d", "8192"}, fewer, {"$1 $2"}},
             {tight + two + Texts{"-b", "512", "-d", "16384"}, fewer, {"$1 $2"}},
             {{"-d", "6400"}, shorter},
             {tight + Texts{"-b", "auto", "-d", "8192"}, shorter},
             {{"--batch-schedule", "0:64,100:6400"}, "steps of at most ([0-9]+)", {"--batch-schedule 0:64,100:$1"}},
             {{"-t", "9000"}, "use (-t [0-9]+), or"},
             {{"-u", "11"}, "at most --max-steps = ([0-9]+)", {"-u $1"}},
             {{"-x", "0", "--epochs", "1", "-u", "94"}, "at most the ([0-9]+) steps of", {"-u $1"}},
             {outer + Texts{"-z", "1"}, use},
             {outer + two + Texts{"-z", "1"}, use, {"$1", "--outer-workers 1"}},
             {outer + Texts{"--ranks", "4", "--outer-workers", "3"}, "use (-.*) for workers"},
             {outer + two + Texts{"--outer-workers", "1"}, use},
             {outer + Texts{"--outer-bits", "4"}, use},
             {outer + Texts{"--noise-scale", "rank"}, "use (auto)", {"--noise-scale $1"}},
             {outer + Texts{"-x", "0", "--max-minutes", "1"}, "add (--max-steps)", {"$1 10"}},
             {{"--noise-scale", "rank"}, "use (auto)", {"--noise-scale $1"}},
             {{"--noise-scale", "rank", "-z", "2"}, "use (auto)", {"--noise-scale $1"}},
             {{"--batch-schedule", "0:64,100:128", "--optimizer", "onebit-adam"}, "use (-d [0-9]+) instead of it",
              {"$1 --batch-schedule="}},
             {{"--cooldown-fraction", "0.5"}, "set that, or (--[^ ;]+)"},
             {{"--stochastic-rounding"}, "add it, or (--[^ :]+)"},
             {{"--keep-best", "-v", "5"}, "add (--keep-checkpoints 1)"},
             {{"--memory", "80"}, "such as ([0-9]+G)", {"--memory $1"}},
             {{"--batch-schedule", "64", "-x", "4k", "--memory", "8G"}, "such as ([^ ;\n]+)", {"--batch-schedule $1"}},
             {{"--optimizer", "onebit-adam", "--onebit-freeze-step", "3", "-u", "5"}, "use more than ([0-9]+)",
              {"--onebit-freeze-step $10"}},
             {tight, room},
             {tight + Texts{"-d", "0"}, room},
             {tight + Texts{"--ranks", "2", "-d", "8192"}, room},
             {tight + Texts{"--batch-schedule", "0:4096,9000:8192", "-d", "0"}, batch_alone},
             {tight + Texts{"--memory", "48M", "--eval-only"}, batch_alone},
             {tight + Texts{"--memory", "48M", "--eval-only", "-d", "0"}, "that fits is [0-9]+: set (-b [0-9]+),"},
             {{"-e", "custom:l=24,h=1,c=32,t=1024", "-b", "1", "-t", "1024", "-d", "2048", "--ranks", "2", "--memory",
               "40M"},
              "not even one sequence fits: try (--recompute block, --dtype bf16, -z 1), a"},
             {{"-x", "5000"}, "held out .-j., with (--stop-after 5)"}}) {
        const auto dry_run = [&](const Texts& more) {
            return folder.run(folder.flags(Texts{"-x", "10", "--dry-run", "--tune=off"} + row.flags + more)).output;
        };
        const Pattern says(row.says);
        const std::string said = dry_run({});
        const auto matches = says.matches(said);
        CAPTURE(row.flags, row.says, said);
        CHECK_FALSE(matches.empty());
        for (const std::string& advice : matches.empty() ? Texts() : row.advice) {
            const std::string followed = dry_run(words_of(advice, matches[0]));
            CAPTURE(advice, followed);
            CHECK_THAT(followed, !Contains("error: "));
            CHECK_FALSE(says.in(followed));
        }
    }
}
