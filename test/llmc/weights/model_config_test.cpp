// model_config_test.cpp - names of models, their sizes, and refused ones
#include "llmc/weights/model_config.h"
#include "test/support/scratch_folder.h"

using namespace llmc;

TEST_CASE("names by depth and by channels give the tables' sizes", "[model_config]") {
    struct Row { const char* name; int layers, heads, channels, positions; };
    const auto row = GENERATE(values<Row>(
        {{"d6", 6, 6, 384, 1024}, {"d12", 12, 12, 768, 1024}, {"d24", 24, 16, 1024, 1024}, {"d36", 36, 20, 1280, 1024},
         {"d48", 48, 25, 1600, 1024}, {"d60", 60, 30, 1920, 1024}, {"d72", 72, 30, 2880, 1024},
         {"d84", 84, 36, 3456, 1024}, {"gpt3:c384", 6, 6, 384, 2048}, {"gpt3:c768", 12, 12, 768, 2048},
         {"gpt3:c1024", 24, 16, 1024, 2048}, {"gpt3:c1536", 24, 16, 1536, 2048}, {"gpt3:c2048", 24, 16, 2048, 2048},
         {"gpt3:c2560", 32, 32, 2560, 2048}, {"gpt3:c4096", 32, 32, 4096, 2048}, {"gpt3:c5120", 40, 40, 5120, 2048},
         {"gpt3:c12288", 96, 96, 12288, 2048}}));
    const NamedModel model = model_by_name(row.name, 50257);
    CAPTURE(row.name);
    CHECK(model.config == ModelConfig{row.layers, row.heads, row.channels, row.positions, 50257});
    CHECK_FALSE(model.named_vocabulary);
    CHECK(model_by_name(row.name, 257).config.vocabulary == 257);
}

TEST_CASE("custom sizes in any order; the vocabulary from the name or from the data", "[model_config]") {
    CHECK(model_by_name("custom:l=4,h=2,c=128", 300).config == ModelConfig{4, 2, 128, 1024, 300});
    CHECK_FALSE(model_by_name("custom:l=4,h=2,c=128", 300).named_vocabulary);
    const NamedModel model = model_by_name("custom:v=61,t=16,c=32,h=4,l=1", 300);
    CHECK(model.config == ModelConfig{1, 4, 32, 16, 61});
    CHECK(model.named_vocabulary);
}

TEST_CASE("the padded vocabulary is the next multiple of 128", "[model_config]") {
    CHECK(ModelConfig{.vocabulary = 50257}.padded_vocabulary() == 50304);
    CHECK(ModelConfig{.vocabulary = 128}.padded_vocabulary() == 128);
    CHECK(ModelConfig{.vocabulary = 129}.padded_vocabulary() == 256);
    CHECK(ModelConfig{.vocabulary = 1}.padded_vocabulary() == 128);
}

TEST_CASE("an unknown name is refused with the text, the fault and the known names", "[model_config]") {
    for (const auto& [name, says] : std::vector<std::pair<std::string, std::vector<std::string>>>{
             {"d13", {"\"d13\"", "not in the table", "d6, d12, d24"}}, {"d012x", {"\"d012x\""}},
             {"gpt3:c769", {"\"gpt3:c769\"", "gpt3:c384, gpt3:c768"}},
             {"gpt2-xl", {"\"gpt2-xl\"", "d12", "custom:"}},
             {"nope", {"\"nope\" is no size, folder, run or model; expected one of d6, d12"}},
             {"", {"\"\""}}, {"d", {"\"d\""}}, {"custom:", {"not understood at \"\""}},
             {"custom:l=4,h=4", {"without c="}}, {"custom:l=4,h=4,c=128,", {"not understood at \"\""}},
             {"custom:l=4,h=4,c=128,c=64", {"c= twice"}},
             {"custom:l=4,h=4,c=128,q=64", {"\"q=64\"", "v= (vocabulary)"}},
             {"custom:l=4,h=4,c=12x", {"\"c=12x\"", "an integer"}},
             {"custom:l=4,h=4,c=99999999999", {"\"c=99999999999\""}},
             {"custom:l=4,h=5,c=128", {"\"custom:l=4,h=5,c=128\"", "a multiple of the 5 heads"}}})
        for (const std::string& part : says)
            CHECK_THAT(test::error_of([&] { model_by_name(name, 50257); }), test::Contains(part));
}

TEST_CASE("check() names the invalid size", "[model_config]") {
    const auto [member, value, says] = GENERATE(table<int ModelConfig::*, int, std::string>({
        {&ModelConfig::layers, 0, "layers is 0"}, {&ModelConfig::heads, 0, "heads is 0"},
        {&ModelConfig::channels, -32, "channels is -32"}, {&ModelConfig::max_seq_len, 0, "positions is 0"},
        {&ModelConfig::vocabulary, 0, "vocabulary is 0"},
        {&ModelConfig::vocabulary, 2147483647, "vocabulary is 2147483647"},
        {&ModelConfig::heads, 3, "channels is 32"},
        {&ModelConfig::heads, 8, "head size (channels / heads) is 4"}, {&ModelConfig::channels, 4 * 256, "accepted"},
        {&ModelConfig::channels, 4 * 264, "head size (channels / heads) is 264"},
        {&ModelConfig::layers, 2, "accepted"}}));
    ModelConfig config{2, 4, 32, 16, 61};
    config.*member = value;
    CHECK_THAT(test::error_of([&] { check(config); }), test::Contains(says));
}

TEST_CASE("a model is described in one line", "[model_config]") {
    CHECK(describe(ModelConfig{}) == "12 layers, 12 heads, 768 channels, 1024 positions, vocabulary 50257");
}
