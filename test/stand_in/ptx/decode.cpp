// decode.cpp - statements to instructions: names become rows of the register file, labels places in the code
//
// Functions that a kernel calls are put where they are called: their parameters are rows of the caller's.
#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "test/stand_in/program.h"
#include "test/stand_in/ptx/operations.h"
#include "test/stand_in/ptx/text.h"

namespace stand_in::ptx {
namespace {

constexpr Type kPredicate{'p', 1}, kB32{'b', 32}, kB64{'b', 64};

std::uint32_t aligned(std::uint32_t at, std::uint32_t to) { return (at + to - 1) / to * to; }

struct Register { std::uint32_t row; Type type; };

class Decoder {
public:
    Decoder(const Module& module, const FunctionText& text) : module_(module), text_(text) {
        function_.name = text.name;
        sink_.row = new_row(kB64);
        for (const Variable& parameter : text.parameters) {
            parameter_bytes_ = aligned(parameter_bytes_, parameter.alignment);
            parameters_[parameter.name] = parameter_bytes_;
            parameter_bytes_ += parameter.bytes;
        }
    }
    Function decode() {
        place(text_.body.front());
        decode_body(text_, kNone);
        // What the launch adds begins where every type may.
        function_.dynamic_shared_at = function_.shared_bytes = aligned(function_.shared_bytes, 128);
        return std::move(function_);
    }

private:
    using Operands = std::vector<std::string_view>;

    // One body, and where its "ret" leads: kNone, to the end of the lanes.
    struct Body {
        std::map<std::string_view, std::uint32_t> labels;
        std::vector<std::pair<std::uint32_t, std::string_view>> jumps;  // instruction, label
        std::vector<std::uint32_t> returns;
        bool is_called = false;
    };

    void decode_body(const FunctionText& text, std::uint32_t called_by) {
        Body* const outer = std::exchange(body_, nullptr);
        Body body{.is_called = called_by != kNone};
        body_ = &body;
        for (const Statement& statement : text.body) decode(statement);
        for (const auto& [at, label] : body.jumps) {
            const auto found = body.labels.find(label);
            if (found == body.labels.end()) wrong("no label " + std::string(label));
            function_.code[at].target = found->second;
        }
        for (const std::uint32_t at : body.returns) function_.code[at].target = std::uint32_t(function_.code.size());
        body_ = outer;
    }

    void decode(const Statement& statement) {
        statement_ = &statement;
        const std::string_view text = statement.text;
        if (text == "{") {
            scopes_.emplace_back();
        } else if (text == "}") {
            scopes_.pop_back();
        } else if (text.back() == ':') {
            body_->labels[text.substr(0, text.size() - 1)] = std::uint32_t(function_.code.size());
        } else if (text[0] == '.') {
            directive(text);
        } else {
            instruction(text);
        }
    }

    // ---- declarations

    void directive(std::string_view text) {
        if (is_place(text)) return place(*statement_);
        if (text.starts_with(".pragma")) return;
        if (text.starts_with(".reg")) return registers(trimmed(text.substr(4)));
        if (text.starts_with(".param")) {  // of a call
            const Variable variable = variable_of(text.substr(6));
            const Type type{'b', 8 * variable.bytes};
            if (variable.bytes != 4 && variable.bytes != 8) wrong("a parameter of a call of other than 4 or 8 bytes");
            scopes_.back()[variable.name] = {new_row(type), type};
            return;
        }
        if (text.starts_with(".local")) {
            const Variable variable = variable_of(text.substr(6));
            function_.local_bytes = aligned(function_.local_bytes, std::max(variable.alignment, 16u));
            locals_[variable.name] = function_.local_bytes;
            function_.local_bytes = aligned(function_.local_bytes + variable.bytes, 16);
            return;
        }
        if (text.starts_with(".shared")) {
            const Variable variable = variable_of(text.substr(7));
            share(variable);
            return;
        }
        wrong("a directive that is not known here");
    }

    // ".b32 %r<6>" or ".b16 low, high"
    void registers(std::string_view text) {
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

    std::uint32_t share(const Variable& variable) {
        if (variable.is_extern) return kNone;
        function_.shared_bytes = aligned(function_.shared_bytes, std::max(variable.alignment, 16u));
        const std::uint32_t at = shared_[variable.name] = function_.shared_bytes;
        function_.shared_bytes += variable.bytes;
        return at;
    }

    // ---- places

    void place(const Statement& statement) {
        std::string place = "kernels.ptx:" + std::to_string(statement.line);
        if (is_place(statement.text)) {
            unsigned file = 0, line = 0;
            const char* const end = statement.text.data() + statement.text.size();
            const char* const next = std::from_chars(statement.text.data() + statement.text.find_first_of("0123456789"),
                                                     end, file).ptr;
            std::from_chars(next + 1, end, line);
            const auto found = module_.files.find(file);
            if (found != module_.files.end()) {
                // of the project's own, without the folder that it was built in
                const std::string_view path = found->second;
                const std::size_t folder = std::min(path.rfind("/kernels/"), path.size());
                place = std::string(path.substr(folder == path.size() ? 0 : folder + 1)) + ":" + std::to_string(line);
            }
        }
        const auto [known, is_new] = places_.try_emplace(place, std::uint32_t(function_.places.size()));
        if (is_new) function_.places.push_back(place);
        place_ = known->second;
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
    // A register that an instruction of this type may name: as wide, and a predicate where that is one.
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
            if (!found->second.is_extern) return share(found->second);
            wrong("shared memory of the launch, used before that of " + function_.name + " is known");
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
        if (type.kind == 'p') wrong("no predicate: " + std::string(text));
        if (const auto value = number(text)) return constant(*value, type);
        if (is_dynamic(text)) return dynamic_base(type);
        const auto address = address_of(text);
        if (!address) wrong("no operand: " + std::string(text));
        return constant(*address, type);
    }

    // Shared memory of the launch begins behind all other: the row is filled when the warp begins.
    bool is_dynamic(std::string_view name) const {
        const auto found = module_.shared.find(name);
        return found != module_.shared.end() && found->second.is_extern;
    }
    std::uint32_t dynamic_base(Type type) {
        if (type.bits != 32) wrong("an address in shared memory of other than 32 bits");
        if (dynamic_base_ == kNone) function_.dynamic_base_row = dynamic_base_ = new_row(kB32);
        return dynamic_base_;
    }

    // "[%rd1+16]": row of the base, and what is added.
    std::uint32_t address(std::string_view text, Type type, Instruction& to) {
        if (text.size() < 3 || text.front() != '[' || text.back() != ']') wrong("no address: " + std::string(text));
        text = text.substr(1, text.size() - 2);
        const std::size_t plus = text.find('+');
        if (plus != text.npos) {
            const auto offset = number(text.substr(plus + 1));
            if (!offset) wrong("no offset of an address");
            to.immediate = std::int64_t(*offset);
        }
        return source(text.substr(0, plus), type);
    }

    // "{%f1, %f2}" or "%f1"
    static Operands elements(std::string_view text) {
        if (text[0] != '{') return {text};
        return split_operands(text.substr(1, text.size() - 2));
    }

    // ---- instructions

    void instruction(std::string_view text) {
        Instruction to;
        to.place = place_;
        if (text[0] == '@') {
            to.guard_negated = text[1] == '!';
            const std::size_t begin = 1 + to.guard_negated, end = text.find_first_of(" \t");
            to.guard = register_of(text.substr(begin, end - begin), kPredicate);
            text = trimmed(text.substr(end));
        }
        const std::size_t end = std::min(text.find_first_of(" \t"), text.size());
        const std::string_view name = text.substr(0, end);
        const Operands operands = split_operands(text.substr(end));
        Mnemonic mnemonic;
        for (std::size_t begin = 0; begin <= name.size();) {
            const std::size_t dot = std::min(name.find('.', begin), name.size());
            mnemonic.push_back(name.substr(begin, dot - begin));
            begin = dot + 1;
        }
        if (branch(mnemonic, operands, to) || memory(mnemonic, operands, to) || of_warp(mnemonic, operands, to) ||
            of_vector(mnemonic, operands, to) || of_registers(mnemonic, operands, to))
            return;
        wrong("an instruction that is not known here");
    }
    void add(const Instruction& instruction) { function_.code.push_back(instruction); }

    bool branch(const Mnemonic& mnemonic, const Operands& operands, Instruction& to) {
        const auto at = std::uint32_t(function_.code.size());
        if (mnemonic[0] == "bra") {
            to.kind = Instruction::Kind::branch;
            body_->jumps.emplace_back(at, operands.at(0));
        } else if (mnemonic[0] == "ret" && body_->is_called) {
            to.kind = Instruction::Kind::branch;
            body_->returns.push_back(at);
        } else if (mnemonic[0] == "ret" || mnemonic[0] == "exit") {
            to.kind = Instruction::Kind::end;
        } else if (mnemonic[0] == "call") {
            call(operands);
            return true;
        } else {
            return false;
        }
        add(to);
        return true;
    }

    // "call.uni (retval0), name, (param0, param1)"
    void call(const Operands& operands) {
        const auto list = [](std::string_view text) { return split_operands(text.substr(1, text.size() - 2)); };
        const bool has_result = operands.at(0)[0] == '(';
        const std::string_view name = operands.at(has_result);
        const auto found = module_.functions.find(name);
        if (found == module_.functions.end()) wrong("no function " + std::string(name));
        const FunctionText& called = found->second;
        const Operands results = has_result ? list(operands[0]) : Operands{};
        const Operands arguments = operands.size() > has_result + 1u ? list(operands[has_result + 1u]) : Operands{};
        if (results.size() != called.results.size() || arguments.size() != called.parameters.size() || depth_ > 8)
            wrong("a call that is not as the function says");
        std::map<std::string_view, Register> rows;
        for (std::size_t i = 0; i < results.size(); ++i)
            rows[called.results[i].name] = register_named(results[i]);
        for (std::size_t i = 0; i < arguments.size(); ++i)
            rows[called.parameters[i].name] = register_named(arguments[i]);
        auto outer = std::exchange(scopes_, {std::move(rows)});
        ++depth_;
        const Statement* const statement = statement_;
        decode_body(called, 0);
        statement_ = statement;
        --depth_;
        scopes_ = std::move(outer);
    }

    // ld and st, .space, modifiers that change no value, .v2 or .v4, .type
    bool memory(const Mnemonic& mnemonic, const Operands& operands, Instruction& to) {
        const bool loads = mnemonic[0] == "ld";
        if (!loads && mnemonic[0] != "st") return false;
        static const std::map<std::string_view, Space> spaces{{"global", Space::global}, {"shared", Space::shared},
                                                              {"local", Space::local}, {"param", Space::parameter}};
        const auto space = spaces.find(mnemonic.size() > 2 ? mnemonic[1] : "");
        const auto type = type_named(mnemonic.back());
        if (space == spaces.end() || !type || operands.size() != 2) return false;
        for (std::size_t i = 2; i + 1 < mnemonic.size(); ++i)
            if (const auto& word = mnemonic[i]; word != "v2" && word != "v4" && word != "cs" && word != "nc" &&
                                                word != "cg" && word != "L1::no_allocate")
                return false;
        const Operands values = elements(operands[loads ? 0 : 1]);
        const std::string_view where = operands[loads ? 1 : 0];
        // a parameter of a call is a row
        const std::string_view named = trimmed(where.substr(1, where.find_first_of("+]") - 1));
        if (space->second == Space::parameter && find_register(named) && named[0] != '%')
            return parameter_of_call(loads, *type, values.at(0), named, to);
        if (space->second == Space::parameter && !loads) return false;
        const Type address_type = space->second == Space::shared ? kB32 : kB64;
        to.count = std::uint8_t(values.size());
        to.row[0] = address(where, address_type, to);
        Type widest{'b', 0};
        for (std::size_t i = 0; i < values.size(); ++i) {
            const bool is_register = find_register(values[i]) || values[i] == "_";
            const Register& value = is_register ? register_named(values[i])
                                                : Register{source(values[i], *type), *type};
            to.row.at(i + 1) = value.row;
            if (values[i] != "_") widest = value.type;
        }
        to.handler = loads ? load_of(space->second, *type, widest.bytes(), to.count)
                           : store_of(space->second, *type, widest.bytes(), to.count);
        if (!to.handler) return false;
        add(to);
        return true;
    }
    bool parameter_of_call(bool loads, Type type, std::string_view value, std::string_view name, Instruction& to) {
        const auto move = operation_of({"mov", type.bits == 64 ? "b64" : "b32"});
        const Type bits{'b', type.bits};
        to.row[0] = loads ? register_of(value, bits) : register_of(name, bits);
        to.row[1] = loads ? register_of(name, bits) : source(value, bits);
        to.handler = move->handler;
        add(to);
        return true;
    }

    bool of_warp(const Mnemonic& mnemonic, const Operands& operands, Instruction& to) {
        using Kind = Instruction::Kind;
        const std::string_view op = mnemonic[0];
        const auto is = [&](std::initializer_list<std::string_view> words) {
            return std::ranges::equal(mnemonic, words);
        };
        if (op == "shfl" && mnemonic.size() == 4 && mnemonic[1] == "sync" && mnemonic[3] == "b32") {
            to.kind = Kind::with_lanes;
            const std::size_t bar = operands.at(0).find('|');
            to.row[1] = register_of(operands[0].substr(0, bar), kB32);
            to.row[2] = bar == std::string_view::npos ? kNone : register_of(operands[0].substr(bar + 1), kPredicate);
            to.row[3] = source(operands.at(1), kB32);
            to.row[4] = source(operands.at(2), kB32);
            to.row[5] = source(operands.at(3), kB32);
            to.row[0] = source(operands.at(4), kB32);
            to.handler = shuffle_of(mnemonic[2]);
        } else if (is({"bar", "warp", "sync"})) {
            to.kind = Kind::with_lanes;
            to.row[0] = source(operands.at(0), kB32);
            to.handler = do_nothing;
        } else if (is({"bar", "sync"}) || is({"barrier", "sync"})) {
            if (operands.size() != 1 || operands[0] != "0") return false;  // of some warps alone
            to.kind = Kind::block_barrier;
            to.handler = do_nothing;
        } else if (op == "mma") {
            if (!is({"mma", "sync", "aligned", "m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"})) return false;
            to.kind = Kind::with_warp;
            to.handler = mma_m16n8k16_bf16;
            std::size_t next = 0;
            for (const std::string_view group : operands)
                for (const std::string_view one : elements(group)) to.row.at(next++) = source(one, kB32);
        } else if (op == "ldmatrix") {
            const bool transposed = mnemonic.size() == 8 && mnemonic[5] == "trans";
            if (!transposed && mnemonic.size() != 7) return false;
            if (mnemonic[3] != "m8n8" || mnemonic[mnemonic.size() - 2] != "shared" || mnemonic.back() != "b16")
                return false;
            to.kind = Kind::with_warp;
            to.handler = ldmatrix_of(transposed);
            const Operands values = elements(operands.at(0));
            to.count = std::uint8_t(values.size());
            if (mnemonic[4] != "x" + std::to_string(values.size())) return false;
            to.row[0] = address(operands.at(1), kB32, to);
            for (std::size_t i = 0; i < values.size(); ++i) to.row.at(i + 1) = register_of(values[i], kB32);
        } else if (is({"cp", "async", "cg", "shared", "global"})) {
            if (operands.size() < 3 || operands[2] != "16") return false;
            Instruction shared;
            to.row[0] = address(operands[0], kB32, shared);
            to.row[1] = address(operands[1], kB64, to);
            to.row[2] = source(operands.size() == 4 ? operands[3] : operands[2], kB32);
            if (shared.immediate != to.immediate && shared.immediate != 0 && to.immediate != 0) return false;
            to.row[3] = constant(std::uint64_t(shared.immediate), kB32);
            to.handler = copy_async;
        } else if (is({"cp", "async", "commit_group"})) {
            to.handler = commit_copies;
        } else if (is({"cp", "async", "wait_group"})) {
            to.immediate = std::int64_t(number(operands.at(0)).value());
            to.handler = wait_for_copies;
        } else {
            return false;
        }
        if (!to.handler) return false;
        add(to);
        return true;
    }

    // mov between a register and the halves of its bits: "mov.b32 %r1, {%rs1, %rs2}"
    bool of_vector(const Mnemonic& mnemonic, const Operands& operands, Instruction& to) {
        if (mnemonic[0] != "mov" || operands.size() != 2) return false;
        const bool splits = operands[0][0] == '{', joins = operands[1][0] == '{';
        if (splits == joins) return false;
        const Operands halves = elements(operands[joins]);
        const auto type = type_named(mnemonic.back());
        if (halves.size() != 2 || !type || (type->bits != 32 && type->bits != 64)) return false;
        const Type half{'b', type->bits / 2};
        if (joins) {
            to.row[0] = register_of(operands[0], *type);
            for (const int i : {0, 1}) to.row[std::size_t(i) + 1] = source(halves[std::size_t(i)], half);
        } else {
            to.row[0] = source(operands[1], *type);
            for (const int i : {0, 1}) to.row[std::size_t(i) + 1] = register_of(halves[std::size_t(i)], half);
        }
        to.handler = halves_of(type->bits, joins);
        add(to);
        return true;
    }

    bool of_registers(const Mnemonic& mnemonic, const Operands& operands, Instruction& to) {
        // a predicate can be set to a constant
        if (mnemonic[0] == "mov" && mnemonic.back() == "pred" && find_register(operands.at(1)) == nullptr) {
            const auto value = number(operands[1]);
            if (!value) return false;
            to.row[0] = register_of(operands[0], kPredicate);
            to.row[1] = constant(*value ? 0xffffffff : 0, kB32);
            to.handler = operation_of({"mov", "pred"})->handler;
            add(to);
            return true;
        }
        const auto operation = operation_of(mnemonic);
        if (!operation || !operation->handler || operands.size() != operation->from.size() + 1) return false;
        to.row[0] = register_of(operands[0], operation->to);
        for (std::size_t i = 0; i < operation->from.size(); ++i)
            to.row.at(i + 1) = source(operands[i + 1], operation->from[i]);
        to.handler = operation->handler;
        add(to);
        return true;
    }

    [[noreturn]] void wrong(const std::string& what) const {
        stop("kernels.ptx:" + std::to_string(statement_->line) + ", in " + function_.name + ": " + what + ": \"" +
             std::string(statement_->text) + "\" (test/stand_in/ptx)");
    }

    const Module& module_;
    const FunctionText& text_;
    Function function_;
    Body* body_ = nullptr;
    const Statement* statement_ = nullptr;
    std::uint32_t place_ = 0, parameter_bytes_ = 0, dynamic_base_ = kNone;
    int depth_ = 0;
    std::vector<std::map<std::string_view, Register>> scopes_{1};
    std::vector<std::unique_ptr<std::string>> names_;  // of numbered registers
    std::map<std::string_view, std::uint32_t> locals_, shared_, parameters_;
    std::map<std::pair<std::uint64_t, unsigned>, std::uint32_t> constants_;
    std::map<std::string, std::uint32_t> places_;
    Register sink_{0, kB32};
};

// kernels.ptx, read once; its modules when one of their kernels is asked for.
class Image {
public:
    Image() {
        Dl_info here{};
        dladdr(reinterpret_cast<const void*>(&signature_of), &here);
        const std::string library(here.dli_fname);
        const std::string path = library.substr(0, library.rfind('/') + 1) + "kernels.ptx";
        std::ifstream file(path, std::ios::binary);
        if (!file) stop("there is no " + path + "; test/stand_in/Makefile makes it");
        text_.assign(std::istreambuf_iterator<char>(file), {});
        const std::string_view text(text_);
        unsigned line = 1 + unsigned(std::count(text.begin(), text.begin() + std::ptrdiff_t(std::min(text.find(
                                                              "\n.version"), text.size())), '\n'));
        for (std::size_t at = text.find("\n.version"); at != text.npos;) {
            const std::size_t next = std::min(text.find("\n.version", at + 1), text.size());
            const std::string_view module = text.substr(at, next - at);
            lines_.push_back(line);
            line += unsigned(std::count(module.begin(), module.end(), '\n'));
            for (std::size_t name = 0; (name = module.find(".entry ", name)) != module.npos;) {
                name += 7;
                module_of_[module.substr(name, module.find_first_of("( \n", name) - name)] = sources_.size();
            }
            sources_.push_back(module);
            at = next == text.size() ? text.npos : next;
        }
        modules_.resize(sources_.size());
    }

    const Signature* signature(std::string_view kernel) {
        if (const auto known = signatures_.find(kernel); known != signatures_.end()) return &known->second;
        const FunctionText* const text = text_of(kernel);
        if (!text) return nullptr;
        Signature signature{.most_threads = text->most_threads};
        for (const Variable& parameter : text->parameters) {
            signature.parameter_bytes = aligned(signature.parameter_bytes, parameter.alignment);
            signature.parameters.push_back({signature.parameter_bytes, parameter.bytes});
            signature.parameter_bytes += parameter.bytes;
        }
        return &signatures_.emplace(text->name, std::move(signature)).first->second;
    }
    const Function* function(std::string_view kernel) {
        if (const auto known = functions_.find(kernel); known != functions_.end()) return &known->second;
        const FunctionText* const text = text_of(kernel);
        if (!text) return nullptr;
        Function decoded = Decoder(*modules_[module_of_.at(kernel)], *text).decode();
        return &functions_.emplace(text->name, std::move(decoded)).first->second;
    }

private:
    const FunctionText* text_of(std::string_view kernel) {
        const auto found = module_of_.find(kernel);
        if (found == module_of_.end()) return nullptr;
        auto& module = modules_[found->second];
        if (!module) module = std::make_unique<Module>(ptx::module_of(sources_[found->second], lines_[found->second]));
        return &module->functions.at(kernel);
    }

    std::string text_;
    std::vector<std::string_view> sources_;  // of modules
    std::vector<unsigned> lines_;            // where each begins
    std::vector<std::unique_ptr<Module>> modules_;
    std::map<std::string_view, std::size_t> module_of_;
    std::map<std::string_view, Signature> signatures_;
    std::map<std::string_view, Function> functions_;
};

Image& image() {
    static Image& only = *new Image;
    return only;
}

}  // namespace

const Signature* signature_of(std::string_view kernel) { return image().signature(kernel); }
const Function* function_of(std::string_view kernel) { return image().function(kernel); }

Function decode(std::string_view text, std::string_view kernel) {
    const Module module = module_of(text, 1);
    return Decoder(module, module.functions.at(kernel)).decode();
}

}  // namespace stand_in::ptx
