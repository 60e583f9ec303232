// text.cpp - parses the PTX that nvcc writes: one module per source file
#include "test/stand_in/ptx/text.h"

#include <algorithm>
#include <charconv>

#include "test/stand_in/program.h"

namespace stand_in::ptx {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

unsigned number_at(std::string_view text, std::size_t at) {
    unsigned value = 0;
    std::from_chars(text.data() + at, text.data() + text.size(), value);
    return value;
}

class Reader {
public:
    Reader(std::string_view text, unsigned line) : text_(text), line_(line) {}

    Module module() {
        Module module;
        while (skip_space(), at_ < text_.size()) {
            const std::string_view rest = text_.substr(at_);
            if (rest.starts_with("Fatbin ")) break;
            if (rest.starts_with(".section")) {
                move_to(text_.find('{', at_));
                skip_braces();
            } else if (rest.starts_with(".version") || rest.starts_with(".target") ||
                       rest.starts_with(".address_size") || rest.starts_with("//")) {
                line();
            } else if (rest.starts_with(".file")) {
                const std::string_view file = line();
                const std::size_t open = file.find('"');
                module.files[number_at(file, 6)] = file.substr(open + 1, file.find('"', open + 1) - open - 1);
            } else {
                declaration(module);
            }
        }
        return module;
    }

private:
    // Parses a variable, a kernel or a function.
    void declaration(Module& module) {
        const std::size_t end = std::min(text_.find(';', at_), text_.find('{', at_));
        if (end == text_.npos) stop_at("not a declaration");
        const std::string_view head = text_.substr(at_, end - at_);
        const bool is_entry = head.find(".entry") != head.npos;
        if (is_entry || head.find(".func") != head.npos) {
            move_to(end);
            const bool has_body = text_[end] == '{';
            FunctionText function = header(head, is_entry);
            function.line = line_;
            if (has_body) skip_braces();
            else move_to(end + 1);
            function.body = text_.substr(end, at_ - end);
            if (has_body) module.functions[function.name] = std::move(function);
        } else if (const std::size_t shared = head.find(".shared"); shared != head.npos && text_[end] == ';') {
            Variable variable = variable_of(head.substr(shared + 7));
            variable.is_extern = head.find(".extern") != head.npos;
            module.shared[variable.name] = variable;
            move_to(end + 1);
        } else {
            stop_at("an unknown declaration");
        }
    }

    FunctionText header(std::string_view head, bool is_entry) {
        FunctionText function;
        std::size_t at = head.find(is_entry ? ".entry" : ".func") + (is_entry ? 6 : 5);
        const auto list = [&] {
            std::vector<Variable> all;
            const std::size_t end = head.find(')', at);
            for (const std::string_view one : split_operands(head.substr(at + 1, end - at - 1)))
                all.push_back(variable_of(trimmed(one).substr(6)));  // ".param"
            at = end + 1;
            return all;
        };
        at = head.find_first_not_of(kSpace, at);
        if (head[at] == '(') {
            function.results = list();
            at = head.find_first_not_of(kSpace, at);
        }
        const std::size_t open = std::min(head.find('(', at), head.size());
        function.name = trimmed(head.substr(at, open - at));
        at = open;
        if (at < head.size()) function.parameters = list();
        for (const std::string_view directive : {".maxntid", ".reqntid"})
            if (const std::size_t found = head.find(directive); found != head.npos) {
                function.most_threads = 1;
                const std::string_view line = head.substr(found + 8, head.find('\n', found) - found - 8);
                for (const std::string_view one : split_operands(line))
                    function.most_threads *= number_at(trimmed(one), 0);
            }
        return function;
    }

public:
    std::vector<Statement> statements() {
        std::vector<Statement> all;
        int depth = 0;
        do {
            skip_space();
            if (at_ >= text_.size()) stop_at("unexpected end");
            const unsigned line_number = line_;
            const char first = text_[at_];
            if (first == '{' || first == '}') {
                depth += first == '{' ? 1 : -1;
                all.push_back({text_.substr(at_, 1), line_number});
                move_to(at_ + 1);
            } else if (text_.substr(at_).starts_with("//")) {
                line();
            } else if (is_place(text_.substr(at_))) {
                all.push_back({line(), line_number});
            } else {
                const std::size_t end = text_.find_first_of(";:", at_);
                if (end == text_.npos) stop_at("not a statement");
                // "::" is part of a modifier, a single colon ends a label
                const bool is_label = text_[end] == ':' && text_[end + 1] != ':';
                const std::size_t last = is_label ? end : text_.find(';', at_);
                all.push_back({trimmed(text_.substr(at_, last - at_ + is_label)), line_number});
                move_to(last + 1);
            }
        } while (depth > 0);
        return all;
    }

private:
    void skip_space() {
        const std::size_t next = text_.find_first_not_of(kSpace, at_);
        move_to(next == text_.npos ? text_.size() : next);
    }
    std::string_view line() {
        const std::size_t begin = at_, end = std::min(text_.find('\n', at_), text_.size());
        move_to(end);
        return trimmed(text_.substr(begin, end - begin));
    }
    void skip_braces() {
        int depth = 0;
        std::size_t end = at_;
        do {
            if (end >= text_.size()) stop_at("unterminated text");
            depth += text_[end] == '{' ? 1 : text_[end] == '}' ? -1 : 0;
            ++end;
        } while (depth > 0);
        move_to(end);
    }
    void move_to(std::size_t to) {
        if (to > text_.size()) stop_at("unexpected end");
        line_ += unsigned(std::count(text_.begin() + std::ptrdiff_t(at_), text_.begin() + std::ptrdiff_t(to), '\n'));
        at_ = to;
    }
    [[noreturn]] void stop_at(const std::string& what) const {
        stop("kernels.ptx:" + std::to_string(line_) + ": " + what + ": \"" +
             std::string(text_.substr(at_, text_.find('\n', at_) - at_)) + "\"");
    }

    std::string_view text_;
    std::size_t at_ = 0;
    unsigned line_;
};

}  // namespace

std::string_view trimmed(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(kSpace);
    return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::vector<std::string_view> split_operands(std::string_view text) {
    std::vector<std::string_view> all;
    int depth = 0;
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= text.size(); ++i) {
        if (i < text.size()) {
            const char c = text[i];
            depth += c == '{' || c == '[' || c == '(' ? 1 : c == '}' || c == ']' || c == ')' ? -1 : 0;
            if (c != ',' || depth > 0) continue;
        }
        if (const std::string_view one = trimmed(text.substr(begin, i - begin)); !one.empty()) all.push_back(one);
        begin = i + 1;
    }
    return all;
}

Variable variable_of(std::string_view text) {
    Variable variable;
    unsigned bytes = 1;
    std::size_t at = 0;
    while ((at = text.find_first_not_of(kSpace, at)) != text.npos) {
        const std::string_view word = text.substr(at, text.find_first_of(kSpace, at) - at);
        at += word.size();
        if (word == ".align") {
            at = text.find_first_not_of(kSpace, at);
            variable.alignment = number_at(text, at);
            at = std::min(text.find_first_of(kSpace, at), text.size());
        } else if (word.size() >= 3 && word[0] == '.' && word[2] >= '0' && word[2] <= '9') {  // ".b8"
            bytes = number_at(word, 2) / 8;
            variable.alignment = std::max(variable.alignment, bytes);
        } else if (word[0] != '.') {
            const std::size_t open = word.find('[');
            variable.name = word.substr(0, open);
            variable.bytes = open == word.npos ? bytes : bytes * number_at(word, open + 1);
        }
    }
    return variable;
}

std::vector<Statement> statements_of(const FunctionText& function) {
    return Reader(function.body, function.line).statements();
}

Module module_of(std::string_view text, unsigned line) { return Reader(text, line).module(); }

}  // namespace stand_in::ptx
