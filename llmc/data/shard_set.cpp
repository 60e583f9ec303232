// shard_set.cpp - finds shards by glob patterns, sorts their names, and checks that they share one vocabulary
#include "llmc/data/shard_set.h"

#include <glob.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "llmc/base/value_text.h"

namespace llmc {
namespace {

struct GlobResult {
    glob_t found{};
    ~GlobResult() { ::globfree(&found); }
};

// The names of files and folders may contain brackets: of a pattern, the part that exists is taken literally.
std::vector<std::string> matches(const std::string& pattern) {
    std::error_code ignored;
    std::size_t literal = pattern.size();
    while (literal > 0 && literal != pattern.npos && !std::filesystem::exists(pattern.substr(0, literal), ignored))
        literal = pattern.rfind('/', literal - 1);
    if (literal == pattern.npos) literal = 0;
    if (literal == pattern.size()) return {pattern};
    require(pattern.find("**", literal) == pattern.npos, "the pattern of shards", in_quotes(pattern),
            "one without \"**\", which matches no more than \"*\"", "give every level of folders: 'DIR/*/*.bin'");
    std::string escaped;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        if (i < literal && std::string_view("*?[]{}\\~").find(pattern[i]) != std::string_view::npos) escaped += '\\';
        escaped += pattern[i];
    }
    GlobResult result;
    const int status = ::glob(escaped.c_str(), GLOB_NOSORT | GLOB_BRACE | GLOB_TILDE, nullptr, &result.found);
    if (status == GLOB_NOSPACE)
        fail("memory for the files that match \"" + pattern + "\"", "exhausted", "room for their names", {},
             Blame::runtime);
    if (status != 0) return {};
    return {result.found.gl_pathv, result.found.gl_pathv + result.found.gl_pathc};
}

// The shards of each pattern, sorted by the bytes of their names, unlike glob, which depends on the locale. A series of
// which some shards still have temporary names is refused, also if no pattern matches them: its writer renames them or
// was killed.
std::vector<std::vector<std::string>> published(const std::vector<Corpus>& corpora) {
    namespace fs = std::filesystem;
    std::vector<std::vector<std::string>> found, before;
    do {  // again, if a writer has renamed shards between the list and the check
        before = std::exchange(found, {});
        std::map<fs::path, std::map<std::string, std::string>> patterns;  // by folder and series
        for (const auto& [pattern, weight, shards] : corpora) {
            auto& files = found.emplace_back(matches(pattern));
            std::erase_if(files, [](const fs::path& file) {
                return file.filename().string().find(kTemporaryShard) != std::string::npos;
            });
            std::sort(files.begin(), files.end());
            files.erase(std::unique(files.begin(), files.end()), files.end());
            for (const fs::path file : files.empty() ? matches(pattern + ".partial-*") : files)
                patterns[file.parent_path()].try_emplace(series_of(file.filename().string()), pattern);
        }
        std::error_code ignored;
        for (const auto& [folder, of_series] : patterns)
            for (fs::directory_iterator entry(folder.empty() ? "." : folder, ignored), end; entry != end;
                 entry.increment(ignored)) {
                const std::string name = entry->path().filename().string(), file = (folder / name).string();
                const auto series = of_series.find(series_of(name));
                if (name.find(kTemporaryShard) == name.npos || series == of_series.end()) continue;
                require(fs::exists(folder / name.substr(0, name.rfind(".partial-")), ignored),
                        "the set of shards " + in_quotes(series->second), "incomplete: " + in_quotes(file) +
                        " is being written, or its writer was killed", "complete shards under their names",
                        "wait for its writer; if none runs, remove the set and start dev/tokenize or dev/data/prepare "
                        "again, or, if the set is whole without it, remove " + in_quotes(file));
            }
    } while (found != before);
    return found;
}

// A file may have a name that looks like a weight.
Corpus corpus_of(const std::string& text) {
    constexpr double kScale = 1e6, kMost = 1e9;
    const auto colon = text.rfind(':');
    const auto weight = colon == text.npos ? std::nullopt : number_of<double>(text.substr(colon + 1));
    std::error_code ignored;
    const bool like_weight = weight || (colon < text.size() - 1 && text.find_first_not_of("0123456789.,%", colon + 1) ==
                                                                       text.npos);  // 70% and 0,7
    if (!like_weight || std::filesystem::exists(text, ignored)) return {.pattern = text};
    const double whole = std::round(weight.value_or(0) * kScale);
    require(whole >= 1 && *weight <= kMost && std::abs(*weight * kScale - whole) < 1e-3,
            "the weight of " + in_quotes(text), text.substr(colon + 1),
            "a number from 0.000001 to 1000000000 with at most six digits after the point");
    return {.pattern = text.substr(0, colon), .weight = std::int64_t(whole)};
}

std::string describe(const Shard& shard) {
    return describe(shard.vocabulary()) + " in " + shard.path();
}

}  // namespace

ShardSet::ShardSet(const std::vector<std::string>& patterns) {
    std::vector<std::string> paths;
    std::set<std::string> of_others;
    std::int64_t common = 0;
    for (const std::string& text : patterns) {
        corpora_.push_back(corpus_of(text));
        const std::int64_t weight = corpora_.back().weight;
        common = std::gcd(common, weight);
        require((weight > 0) == is_weighted(), "the pattern " + in_quotes(weight > 0 ? patterns.front() : text),
                "without a weight", "a weight for every pattern, or for none", "append one, such as :0.5");
    }
    const auto files = published(corpora_);
    for (std::size_t i = 0; i < files.size(); ++i) {
        const auto& found = files[i];
        auto& [pattern, weight, shards] = corpora_[i];
        require(!found.empty(), "the number of shards that match \"" + pattern + "\"", 0, "at least 1",
                "check the path and that its folder is readable; quote the pattern so that the shell does not expand "
                "it");
        for (const std::string& path : found) {
            std::error_code fault;  // a file that is gone is refused when it is opened
            const auto file = std::filesystem::canonical(path, fault);  // ../ and links lead to the same file
            require(of_others.insert(fault ? path : file.string()).second, "the shard " + in_quotes(path),
                    "matched by two patterns, or under two names", "each shard once",
                    "remove one; the last pattern is " + in_quotes(pattern));
        }
        paths.insert(paths.end(), found.begin(), found.end());
        shards = std::ssize(found);
    }
    for (Corpus& corpus : corpora_) corpus.weight /= std::max(common, std::int64_t(1));
    require(!paths.empty(), "the number of shard patterns", 0, "at least 1");

    for (std::string& path : paths) {
        shards_.emplace_back(std::move(path));
        require(shards_.back().vocabulary() == vocabulary(), "the vocabulary", describe(shards_.back()),
                "that of the others: " + describe(shards_.front()), "train on shards of one tokenizer");
    }
}

std::string ShardSet::unmatched(const std::vector<std::string>& patterns) {
    const auto first = std::ranges::find_if(
        patterns, [](const auto& pattern) { return matches(corpus_of(pattern).pattern).empty(); });
    return first == patterns.end() ? "" : *first;
}

std::int64_t ShardSet::tokens() const {
    std::int64_t total = 0;
    for (const Shard& shard : shards_) total += shard.tokens();
    return total;
}

}  // namespace llmc
