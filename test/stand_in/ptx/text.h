// text.h - PTX as text: its statements, and what a module declares
#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace stand_in::ptx {

// One statement: "add.s32 %r1, %r2, 3", ".reg .pred %p<3>", "{", "}", or a label with its colon.
struct Statement {
    std::string_view text;
    unsigned line;
};

// A variable in shared memory: ".shared .align 16 .b8 sums[256]"; of one that is `.extern` the launch says how long.
struct Variable {
    std::string_view name;
    unsigned bytes = 0, alignment = 1;
    bool is_extern = false;
};
// ".align 8 .b8 name[24]" or ".u32 name"
Variable variable_of(std::string_view text);

struct FunctionText {
    std::string_view name;
    std::vector<Variable> results, parameters;
    unsigned most_threads = 1024;
    std::string_view body;  // from its opening brace behind its closing one
    unsigned line = 0;      // where that begins
};
// Those of the body, and its braces.
std::vector<Statement> statements_of(const FunctionText& function);

struct Module {
    std::map<std::string_view, FunctionText> functions;  // kernels, and what they call
    std::map<std::string_view, Variable> shared;
    std::map<unsigned, std::string_view> files;  // of ".loc"
};

// From its ".version", which is in this line of the file, on to the end or to what cuobjdump puts before the next one.
Module module_of(std::string_view text, unsigned line);

// ".loc FILE LINE ...", where the source of what follows is.
inline bool is_place(std::string_view text) { return text.starts_with(".loc\t") || text.starts_with(".loc "); }

// Without white space at both ends.
std::string_view trimmed(std::string_view text);
// At commas outside of brackets.
std::vector<std::string_view> split_operands(std::string_view text);

}  // namespace stand_in::ptx
