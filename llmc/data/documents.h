// documents.h - where one document of a text ends and the next begins
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

// Every byte of a text belongs to exactly one of its documents, in order. Patterns are POSIX extended regular
// expressions, matched against bytes, a line at a time without its newline; '^' and '$' are the line's ends.
class DocumentRule {
public:
    static DocumentRule whole_text();
    // A line that matches begins a document.
    static DocumentRule starting_at(const std::string& pattern);
    // Lines for which the first (...) of `pattern` catches the same text, one after the other, are one document; a line
    // that does not match belongs to the document of the line before. With '^([^:]+):' the verses "Ge1:1 ...", "Ge1:2
    // ..." make one document, and "Ge2:1 ..." begins the next.
    static DocumentRule keyed_by(const std::string& pattern);

    // Views into `text`. An empty text has no document.
    std::vector<std::string_view> split(std::string_view text) const;

private:
    struct Regex;
    enum class Kind { whole_text, starting_at, keyed_by };
    DocumentRule(Kind kind, const std::string& pattern);

    Kind kind_;
    std::shared_ptr<const Regex> regex_;
};

}  // namespace llmc
