// names.h - names in a kernel's PTX: rows of the register file, and addresses
#pragma once
#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "test/stand_in/program.h"
#include "test/stand_in/ptx/operations.h"
#include "test/stand_in/ptx/text.h"

namespace stand_in::ptx {

inline constexpr Type kB32{'b', 32}, kB64{'b', 64};

constexpr std::uint32_t aligned(std::uint32_t at, std::uint32_t to) { return (at + to - 1) / to * to; }

struct Register {
    std::uint32_t row;
    Type type;
};

// Names of the function being decoded; they add rows and memory to it.
class Names {
public:
    Names(const Module& module, const FunctionText& text) : module_(module) {
        function_.name = text.name;
        sink_.row = new_row(kB64);
        std::uint32_t bytes = 0;
        for (const Variable& parameter : text.parameters) {
            parameters_[parameter.name] = bytes = aligned(bytes, parameter.alignment);
            bytes += parameter.bytes;
        }
    }

protected:
    // ---- declarations

    // A parameter of a call is a row.
    void declare_parameter(std::string_view text) {
        const Variable variable = variable_of(text);
        if (variable.bytes != 4 && variable.bytes != 8) wrong("a parameter of a call of other than 4 or 8 bytes");
        const Type type{'b', 8 * variable.bytes};
        scopes_.back()[variable.name] = {new_row(type), type};
    }
    // A variable on the stack of each lane.
    void declare_local(std::string_view text) {
        const Variable variable = variable_of(text);
        function_.local_bytes = aligned(function_.local_bytes, std::max(variable.alignment, 16u));
        locals_[variable.name] = function_.local_bytes;
        function_.local_bytes = aligned(function_.local_bytes + variable.bytes, 16);
    }
    std::uint32_t declare_shared(const Variable& variable) {
        function_.shared_bytes = aligned(function_.shared_bytes, std::max(variable.alignment, 16u));
        const std::uint32_t at = shared_[variable.name] = function_.shared_bytes;
        function_.shared_bytes += variable.bytes;
        return at;
    }
    // ".b32 %r<6>" or ".b16 low, high"
    void declare_registers(std::string_view text) {
        const std::size_t space = text.find_first_of(" \t");
        const auto type = type_named(text.substr(1, space - 1));
        if (!type) wrong("a register of an unknown type");
        for (const std::string_view one : split_operands(text.substr(space))) {
            const std::size_t open = one.find('<');
            if (open == one.npos) {
                scopes_.back()[one] = {new_row(*type), *type};
                continue;
            }
            unsigned count = 0;
            std::from_chars(one.data() + open + 1, one.data() + one.size(), count);
            for (unsigned i = 0; i < count; ++i) {
                names_.push_back(std::make_unique<std::string>(std::string(one.substr(0, open)) + std::to_string(i)));
                scopes_.back()[*names_.back()] = {new_row(*type), *type};
            }
        }
    }

    std::uint32_t new_row(Type type) {
        const std::uint32_t row = function_.register_bytes;
        function_.register_bytes += type.kind == 'p' ? 64 : aligned(kLanes * type.bytes(), 64);
        return row;
    }

    // ---- operands

    const Register* find_register(std::string_view name) const {
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
            if (const auto found = scope->find(name); found != scope->end()) return &found->second;
        return nullptr;
    }
    const Register& register_named(std::string_view name) {
        if (name == "_") return sink_;
        const Register* const found = find_register(name);
        if (!found) wrong("no register " + std::string(name));
        return *found;
    }
    // A register operand of this type: it must have the same size, and be a predicate if the type is one.
    std::uint32_t register_of(std::string_view name, Type type) {
        const Register& found = register_named(name);
        if (found.type.kind == 'p' ? type.kind != 'p' : type.kind == 'p' || found.type.bits != type.bits)
            wrong("the register " + std::string(name) + " is of another size");
        return found.row;
    }

    std::uint32_t constant(std::uint64_t bits, Type type) {
        const auto [known, is_new] = constants_.try_emplace({bits, type.bytes()}, 0);
        if (is_new) {
            known->second = new_row(type);
            function_.constants.push_back({bits, known->second, type.bytes()});
        }
        return known->second;
    }

    std::optional<std::uint32_t> special(std::string_view name) {
        static const std::map<std::string_view, Function::Special> all{
            {"%tid.x", Function::Special::tid_x}, {"%tid.y", Function::Special::tid_y},
            {"%tid.z", Function::Special::tid_z}, {"%ntid.x", Function::Special::ntid_x},
            {"%ntid.y", Function::Special::ntid_y}, {"%ntid.z", Function::Special::ntid_z},
            {"%ctaid.x", Function::Special::ctaid_x}, {"%ctaid.y", Function::Special::ctaid_y},
            {"%ctaid.z", Function::Special::ctaid_z}, {"%nctaid.x", Function::Special::nctaid_x},
            {"%nctaid.y", Function::Special::nctaid_y}, {"%nctaid.z", Function::Special::nctaid_z},
            {"%laneid", Function::Special::laneid}};
        const auto found = all.find(name);
        if (found == all.end()) return {};
        for (const auto& [known, row] : function_.specials)
            if (known == found->second) return row;
        function_.specials.push_back({found->second, new_row(kB32)});
        return function_.specials.back().row;
    }

    // The address of a variable in its space.
    std::optional<std::uint64_t> address_of(std::string_view name) {
        if (const auto found = locals_.find(name); found != locals_.end()) return found->second;
        if (const auto found = shared_.find(name); found != shared_.end()) return found->second;
        if (const auto found = parameters_.find(name); found != parameters_.end()) return found->second;
        if (const auto found = module_.shared.find(name); found != module_.shared.end()) {
            return declare_shared(found->second);
        }
        return {};
    }

    static std::optional<std::uint64_t> number(std::string_view text) {
        const bool negative = text[0] == '-';
        if (negative) text.remove_prefix(1);
        if (text.size() > 2 && text[0] == '0' && std::string_view("fFdD").find(text[1]) != text.npos) {
            std::uint64_t bits = 0;
            const auto end = std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
            if (end.ptr != text.data() + text.size() || negative) return {};
            return bits;
        }
        int base = 10;
        if (text.starts_with("0x")) {
            base = 16;
            text.remove_prefix(2);
        }
        if (text.ends_with('U')) text.remove_suffix(1);
        std::uint64_t value = 0;
        const auto end = std::from_chars(text.data(), text.data() + text.size(), value, base);
        if (text.empty() || end.ptr != text.data() + text.size()) return {};
        return negative ? 0 - value : value;
    }

    std::uint32_t source(std::string_view text, Type type) {
        if (const Register* const found = find_register(text)) return register_of(text, type), found->row;
        if (text[0] == '%') {
            const auto row = special(text);
            if (!row || type.bits != 32) wrong("no register " + std::string(text));
            return *row;
        }
        if (type.kind == 'p') wrong("not a predicate: " + std::string(text));
        if (const auto value = number(text)) return constant(*value, type);
        if (is_dynamic(text)) return dynamic_base(type);
        const auto address = address_of(text);
        if (!address) wrong("not an operand: " + std::string(text));
        return constant(*address, type);
    }

    // Dynamic shared memory starts after static memory; the row is set when the warp starts.
    bool is_dynamic(std::string_view name) const {
        const auto found = module_.shared.find(name);
        return found != module_.shared.end() && found->second.is_extern;
    }
    std::uint32_t dynamic_base(Type type) {
        if (type.bits != 32) wrong("an address in shared memory of other than 32 bits");
        if (dynamic_base_ == kNone) function_.dynamic_base_row = dynamic_base_ = new_row(kB32);
        return dynamic_base_;
    }

    [[noreturn]] void wrong(const std::string& what) const {
        stop("kernels.ptx:" + std::to_string(statement_->line) + ", in " + function_.name + ": " + what + ": \"" +
             std::string(statement_->text) + "\" (test/stand_in/README.md describes how to add it)");
    }

    const Module& module_;
    Function function_;
    const Statement* statement_ = nullptr;
    std::vector<std::map<std::string_view, Register>> scopes_{1};

private:
    std::uint32_t dynamic_base_ = kNone;
    std::vector<std::unique_ptr<std::string>> names_;  // names of numbered registers
    std::map<std::string_view, std::uint32_t> locals_, shared_, parameters_;
    std::map<std::pair<std::uint64_t, unsigned>, std::uint32_t> constants_;
    Register sink_{0, kB64};
};

}  // namespace stand_in::ptx
