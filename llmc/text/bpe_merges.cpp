// bpe_merges.cpp - parses merges from lines of symbols and from Hugging Face's JSON
#include "llmc/text/bpe_merges.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "kernels/base/error.h"
#include "llmc/base/fingerprint.h"
#include "llmc/base/json_text.h"
#include "llmc/base/input_file.h"
#include "llmc/base/utf8.h"

namespace llmc {
namespace {

using nlohmann::json;

constexpr std::size_t kMostMerges = kLargestVocabulary - 257;
constexpr std::size_t kLongestToken = 1 << 16;  // bytes; malicious merges double the length with every line
constexpr const char* kGpt2Fingerprint = "b9e9c2214a56d24d";
constexpr const char* kGetMerges =
    "pass merges.txt, vocab.bpe or tokenizer.json; scripts/get_gpt2_tokenizer.sh gets GPT-2's merges";

// Arbitrary bytes as ASCII.
std::string plain(std::string_view text) { return excerpt(json(std::string(text))); }

bool has_own_symbol(int byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173); }

struct ByteOrder {
    std::array<std::uint8_t, 256> byte_of_id{}, id_of_byte{};
    ByteOrder() {
        int id = 0;
        for (const bool own : {true, false})
            for (int byte = 0; byte < 256; ++byte)
                if (has_own_symbol(byte) == own) byte_of_id[std::size_t(id++)] = std::uint8_t(byte);
        for (int i = 0; i < 256; ++i) id_of_byte[byte_of_id[std::size_t(i)]] = std::uint8_t(i);
    }
};

const ByteOrder& byte_order() {
    static const ByteOrder order;
    return order;
}

constexpr int kVisibleBytes = 188;  // bytes whose symbol is the byte itself

// The bytes that the symbols represent; nullopt if a character is not a symbol.
std::optional<std::string> bytes_of_symbols(std::string_view symbols) {
    std::string bytes;
    while (!symbols.empty()) {
        const std::size_t length = character_length(symbols);
        if (length == 0) return std::nullopt;
        const int code = int(code_point(symbols.substr(0, length)));
        symbols.remove_prefix(length);
        if (code < 256 && has_own_symbol(code)) bytes += char(code);
        else if (code >= 256 && code < 256 + (256 - kVisibleBytes))
            bytes += char(byte_order().byte_of_id[std::size_t(code - 256 + kVisibleBytes)]);
        else return std::nullopt;
    }
    return bytes;
}

// Collects merges and refuses invalid ones.
class MergesBuilder {
public:
    explicit MergesBuilder(std::string file) : file_(std::move(file)) {
        for (int id = 0; id < 256; ++id)
            ids_.emplace(std::string(1, char(byte_order().byte_of_id[std::size_t(id)])), id);
    }

    // `place`: "line 7".
    void add(const std::string& place, const std::string& left, const std::string& right) {
        const auto part = [&](const std::string& bytes) {
            const auto found = ids_.find(bytes);
            if (found == ids_.end())
                fail(at(place) + ": a part of the merge", in_quotes(byte_symbols(bytes)),
                     "a byte, or the result of an earlier merge", kGetMerges);
            return std::uint16_t(found->second);
        };
        require(result_.merges.size() < kMostMerges, at(place) + ": the number of merges", result_.merges.size() + 1,
                "at most " + std::to_string(kMostMerges), kGetMerges);
        const BpeMerge merge{part(left), part(right)};
        const std::string merged = left + right;
        require(merged.size() <= kLongestToken, at(place) + ": bytes of the merged token", merged.size(),
                "at most " + std::to_string(kLongestToken), kGetMerges);
        all_bytes_ += merged.size();
        require(all_bytes_ <= kMostBytes, at(place) + ": bytes of all tokens", all_bytes_,
                "at most " + std::to_string(kMostBytes), kGetMerges);
        const bool is_new = ids_.emplace(merged, int(256 + result_.merges.size())).second;
        require(is_new, at(place) + ": the merged token", in_quotes(byte_symbols(merged)),
                "a token that no earlier merge gives", kGetMerges);
        result_.merges.push_back(merge);
    }
    void add_symbols(const std::string& place, std::string_view left, std::string_view right) {
        const auto bytes = [&](std::string_view symbols) {
            const auto found = bytes_of_symbols(symbols);
            if (!found || found->empty())
                fail(at(place) + ": a part of the merge", plain(symbols), "GPT-2's symbols for bytes", kGetMerges);
            return *found;
        };
        add(place, bytes(left), bytes(right));
    }
    void add_line(const std::string& place, std::string_view line) {
        const std::size_t space = line.find(' ');
        if (space == line.npos || line.find(' ', space + 1) != line.npos)
            fail(at(place), plain(line), "two symbols with a space between them", kGetMerges);
        add_symbols(place, line.substr(0, space), line.substr(space + 1));
    }
    int id_of(const std::string& bytes) const {
        const auto found = ids_.find(bytes);
        return found == ids_.end() ? -1 : found->second;
    }
    BpeMerges take() {
        require(!result_.merges.empty(), "the number of merges in " + file_, 0, "at least 1", kGetMerges);
        return std::move(result_);
    }
    std::string at(const std::string& place) const { return file_ + ": " + place; }

private:
    static constexpr std::size_t kMostBytes = 16 << 20;
    std::string file_;
    std::unordered_map<std::string, int> ids_;
    std::size_t all_bytes_ = 0;
    BpeMerges result_;
};

BpeMerges from_lines(const std::string& file, std::string_view text) {
    MergesBuilder builder(file);
    for (std::size_t number = 1; !text.empty(); ++number) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
        builder.add_line("line " + std::to_string(number), line);
    }
    return builder.take();
}

BpeMerges from_tokenizer_json(const std::string& file, std::string_view text) {
    MergesBuilder builder(file);
    const json all = parse_json_object("the tokenizer " + file, text, kGetMerges);
    const json* model = all.contains("model") && all["model"].is_object() ? &all["model"] : nullptr;
    const auto has = [&](const char* key, bool array) {
        return model && model->contains(key) && (array ? (*model)[key].is_array() : (*model)[key].is_object());
    };
    if (!has("merges", true) || !has("vocab", false))
        fail(file, "without model.merges or model.vocab", "the tokenizer.json of a byte-level BPE", kGetMerges);
    const auto require_as_gpt2 = [&](const char* in, const json& of, const char* key, const json& expected) {
        const json own = of.value(key, expected);
        require(own == expected || (own.is_null() && expected == ""), builder.at(in + std::string(key)), excerpt(own),
                text_of(expected) + ", as in GPT-2's",
                "train a tokenizer with dev/tokenize --tokenizer auto, or use GPT-2's");
    };
    const json pieces = all.value("pre_tokenizer", json());
    require(pieces.is_object(), builder.at("pre_tokenizer"), excerpt(pieces), "ByteLevel, as in GPT-2's", kGetMerges);
    for (const auto& [key, expected] : {std::pair<const char*, json>("type", "ByteLevel"), {"add_prefix_space", false},
                                        {"use_regex", true}})
        require_as_gpt2("pre_tokenizer.", pieces, key, expected);
    require_as_gpt2("", all, "normalizer", nullptr);
    for (const auto& [key, expected] : {std::pair<const char*, json>("type", "BPE"), {"dropout", nullptr},
                                        {"ignore_merges", false}, {"continuing_subword_prefix", ""},
                                        {"end_of_word_suffix", ""}})
        require_as_gpt2("model.", *model, key, expected);
    std::size_t index = 0;
    for (const json& merge : (*model)["merges"]) {
        const std::string place = "model.merges[" + std::to_string(index++) + "]";
        if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
            builder.add_symbols(place, merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
        else if (merge.is_string()) builder.add_line(place, merge.get_ref<const std::string&>());
        else fail(builder.at(place), excerpt(merge), "two symbols", kGetMerges);
    }
    std::size_t known = 0;
    for (const auto& [name, id] : (*model)["vocab"].items()) {
        if (name == kEndOfTextSymbol) continue;
        const auto bytes = bytes_of_symbols(name);
        const int expected = bytes ? builder.id_of(*bytes) : -1;
        if (expected < 0)
            fail(builder.at("a token of model.vocab"), plain(name), "a byte or the result of a merge", kGetMerges);
        if (!id.is_number_integer() || id != expected)
            fail(builder.at("the id of " + plain(name) + " in model.vocab"), excerpt(id), std::to_string(expected),
                 kGetMerges);
        ++known;
    }
    BpeMerges merges = builder.take();
    require(known == 256 + merges.merges.size(), builder.at("the number of tokens in model.vocab"), known,
            "one for each byte and merge, " + std::to_string(256 + merges.merges.size()), kGetMerges);
    return merges;
}

}  // namespace

const std::array<std::uint8_t, 256>& id_of_byte() { return byte_order().id_of_byte; }

std::string byte_symbols(std::string_view bytes) {
    std::string symbols;
    for (const char c : bytes) {
        const auto byte = static_cast<std::uint8_t>(c);
        const int code = has_own_symbol(byte) ? byte : 256 + byte_order().id_of_byte[byte] - kVisibleBytes;
        if (code < 0x80) symbols += char(code);
        else symbols += {char(0xc0 | code >> 6), char(0x80 | (code & 0x3f))};
    }
    return symbols;
}

std::vector<std::string> BpeMerges::tokens() const {
    std::vector<std::string> tokens;
    tokens.reserve(256 + merges.size());
    for (const std::uint8_t byte : byte_order().byte_of_id) tokens.emplace_back(1, char(byte));
    for (const BpeMerge& merge : merges) tokens.push_back(tokens[merge.left] + tokens[merge.right]);
    return tokens;
}

Vocabulary BpeMerges::vocabulary() const {
    const int end_of_text = int(256 + merges.size());
    return {end_of_text + 1, end_of_text, is_gpt2() ? 0 : std::int32_t(std::stoul(fingerprint().substr(8), {}, 16))};
}

std::string BpeMerges::fingerprint() const { return llmc::fingerprint(std::as_bytes(std::span(merges))); }
bool BpeMerges::is_gpt2() const { return fingerprint() == kGpt2Fingerprint; }

BpeMerges parse_merges(const std::string& file, std::string_view text) {
    require(!text.empty(), "the merges " + file, "empty", "merges", kGetMerges);
    const std::size_t first = std::min(text.find_first_not_of(" \t\r\n"), text.size() - 1);
    if (text[first] == '{') return from_tokenizer_json(file, text);
    return from_lines(file, text);
}

BpeMerges read_merges(const std::filesystem::path& file) {
    return parse_merges(file.string(), read_text(file.string(), "the merges"));
}

BpeMerges read_gpt2_merges(const std::filesystem::path& file) {
    BpeMerges merges = read_merges(file);
    if (!merges.is_gpt2())
        fail("the merges " + file.string(),
             "another table (" + std::to_string(merges.merges.size()) + " merges, XXH3 " + merges.fingerprint() + ")",
             std::string("GPT-2's 50000, XXH3 ") + kGpt2Fingerprint, kGetMerges);
    return merges;
}

std::filesystem::path find_gpt2_merges() {
    const std::filesystem::path file = "data/gpt2/vocab.bpe";
    std::error_code none;
    if (std::filesystem::is_regular_file(file, none)) return file;
    // build/DEVICE/PROGRAM
    const auto program = std::filesystem::read_symlink("/proc/self/exe", none);
    const auto beside = program.parent_path().parent_path().parent_path() / file;
    return !none && std::filesystem::is_regular_file(beside, none) ? beside : std::filesystem::path();
}

}  // namespace llmc
