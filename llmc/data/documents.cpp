// documents.cpp - documents of a text, told apart by POSIX regular expressions line by line
#include "llmc/data/documents.h"

#include <regex.h>

#include <algorithm>
#include <optional>

#include "kernels/device/error.h"

namespace llmc {
namespace {

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\v\f") == text.npos; }

}  // namespace

// POSIX's, not std::regex, whose matcher recurses once per character and overflows the stack on lines of some hundred
// kilobytes.
struct DocumentRule::Regex {
    regex_t compiled;

    explicit Regex(const std::string& pattern) {
        const int status = ::regcomp(&compiled, pattern.c_str(), REG_EXTENDED);
        if (status == 0) return;
        char reason[256];
        ::regerror(status, &compiled, reason, sizeof reason);
        fail("pattern \"" + pattern + "\"", std::string("malformed (") + reason + ")",
             "a POSIX extended regular expression");
    }
    ~Regex() { ::regfree(&compiled); }
    Regex(const Regex&) = delete;
    Regex& operator=(const Regex&) = delete;

    // What group `group` catches in `line` (group 0: the whole match); nothing if there is no match or the group has no
    // part in it.
    std::optional<std::string_view> match(std::string_view line, int group) const {
        regmatch_t caught[2];
        caught[0].rm_so = 0;
        caught[0].rm_eo = regoff_t(line.size());
        if (::regexec(&compiled, line.data(), 2, caught, REG_STARTEND) != 0 || caught[group].rm_so < 0)
            return std::nullopt;
        return line.substr(std::size_t(caught[group].rm_so), std::size_t(caught[group].rm_eo - caught[group].rm_so));
    }
};

DocumentRule::DocumentRule(Kind kind, const std::string& pattern)
    : kind_(kind), regex_(kind == Kind::whole_text ? nullptr : std::make_shared<const Regex>(pattern)) {}

DocumentRule DocumentRule::whole_text() { return {Kind::whole_text, {}}; }
DocumentRule DocumentRule::starting_at(const std::string& pattern) { return {Kind::starting_at, pattern}; }
DocumentRule DocumentRule::keyed_by(const std::string& pattern) {
    DocumentRule rule(Kind::keyed_by, pattern);
    require(rule.regex_->compiled.re_nsub >= 1, "pattern \"" + pattern + "\"", "without a group",
            "one with (...) around the document's key, as in '^([^:]+):'");
    return rule;
}

std::vector<std::string_view> DocumentRule::split(std::string_view text) const {
    if (text.empty()) return {};
    if (kind_ == Kind::whole_text) return {text};

    std::vector<std::string_view> documents;
    std::optional<std::string_view> key;  // of the document being read; none before the first line that has one
    std::size_t document = 0;
    bool blank = true;  // the document so far
    for (std::size_t line = 0; line < text.size();) {
        const std::size_t end = std::min(text.find('\n', line), text.size());
        const std::string_view words = text.substr(line, end - line);
        const auto caught = regex_->match(words, kind_ == Kind::keyed_by ? 1 : 0);
        const bool begins = caught && (kind_ == Kind::starting_at || caught != key);
        if (caught) key = caught;
        if (begins && !blank) {
            documents.push_back(text.substr(document, line - document));
            document = line;
            blank = true;
        }
        blank = blank && is_blank(words);
        line = std::min(end + 1, text.size());
    }
    const std::string_view last = text.substr(document);
    if (documents.empty() || !blank) documents.push_back(last);
    else documents.back() = {documents.back().data(), documents.back().size() + last.size()};
    return documents;
}

}  // namespace llmc
