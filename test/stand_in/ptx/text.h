// text.h - PTX as text: statements and declarations of a module
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

// A variable in shared memory: ".shared .align 16 .b8 sums[256]"; the launch sets the size of an `.extern` one.
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
    std::string_view body;  // from its opening to its closing brace
    unsigned line = 0;      // first line of the body
};
// Statements and braces of the body.
std::vector<Statement> statements_of(const FunctionText& function);

struct Module {
    std::map<std::string_view, FunctionText> functions;  // kernels and the functions that they call
    std::map<std::string_view, Variable> shared;
    std::map<unsigned, std::string_view> files;  // file names for ".loc"
};

// Parses a module from its ".version", at this line of the file, up to cuobjdump's header of the next one.
Module module_of(std::string_view text, unsigned line);

// ".loc FILE LINE ...": source position of the following code.
inline bool is_place(std::string_view text) { return text.starts_with(".loc\t") || text.starts_with(".loc "); }

// Without leading and trailing white space.
std::string_view trimmed(std::string_view text);
// Split at commas outside of brackets.
std::vector<std::string_view> split_operands(std::string_view text);

}  // namespace stand_in::ptx
